"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const kept = {
    get() { try { return localStorage.getItem("fmcheck-theme") || "auto"; } catch { return "auto"; } },
    set(name) { try { localStorage.setItem("fmcheck-theme", name); } catch { /* not for a file */ } },
  };
  const wear = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.name = name;
  };
  wear(themes.includes(kept.get()) ? kept.get() : "auto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.name) + 1) % themes.length];
    wear(next);
    kept.set(next);
  });

  const form = document.getElementById("filters");
  if (!form) return;
  const shown = document.getElementById("shown");
  const none = document.getElementById("none");
  const fold = document.getElementById("fold");
  const findings = [...document.querySelectorAll("details.finding")].map((element) => ({
    element,
    check: element.dataset.check,
    buffer: element.dataset.buffer,
    get words() { return (this.text ??= element.textContent.toLowerCase()); },
    tests: [...element.querySelectorAll("[data-test]")].map((one) => one.dataset.test),
  }));
  const names = ["check", "buffer", "test", "text"];

  const apply = () => {
    const asked = Object.fromEntries(names.map((name) => [name, form.elements[name].value.trim()]));
    const words = asked.text.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const one of findings) {
      const fits = (!asked.check || one.check === asked.check)
        && (!asked.buffer || one.buffer === asked.buffer)
        && (!asked.test || one.tests.some((test) => test.includes(asked.test)))
        && words.every((word) => one.words.includes(word));
      one.element.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${findings.length} shown`;
    none.hidden = count > 0;
    const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
    const hash = query.toString();
    if (hash || location.hash.includes("=")) {
      try { history.replaceState(null, "", hash ? `#${hash}` : "#"); } catch { /* not for a file */ }
    }
  };
  const restore = () => {
    const hash = location.hash.slice(1);
    if (hash.includes("=")) {
      const query = new URLSearchParams(hash);
      for (const name of names) form.elements[name].value = query.get(name) || "";
      apply();
    } else if (hash) {
      const element = document.getElementById(hash);
      if (element && element.matches("details.finding")) {
        element.hidden = false;
        element.open = true;
        element.scrollIntoView();
      }
    }
  };

  let waiting = 0;
  form.hidden = false;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(apply, 80);
  });
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  fold.addEventListener("click", () => {
    const open = fold.textContent === "Open all";
    for (const one of findings) if (!one.element.hidden) one.element.open = open;
    fold.textContent = open ? "Close all" : "Open all";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      event.preventDefault();
      form.elements.text.focus();
    }
  });
  addEventListener("hashchange", restore);
  restore();
  apply();
})();
