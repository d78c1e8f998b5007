# `make demo` and `make test` set up everything they need in .venv.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# A compiled file that may not be written is compiled again by each process that a test starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test sweep check prove-self matrix truth museum drives reach engines gpu kernels benchmarks robust fuzz prove corpus corpus-diff historic docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml constraints.txt tests/requirements.txt tests/requirements-release.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[pytest]' torch -r tests/requirements.txt
	@touch $@

demo: $(VENV)/.ready  ## findings in the source and at run time, on the built-in engine
	$(BIN)/fmcheck lint fixtures/demo; test $$? -eq 1
	$(BIN)/fmcheck lint --diff fixtures/demo; test $$? -eq 1
	$(BIN)/fmcheck doctor --backend eager
	$(BIN)/python -m pytest -p fmcheck fixtures/engine; test $$? -eq 1
	@echo 'As meant: the linter found the two injected bugs, which --fix would fix;'
	@echo 'every detector fires; and of the tests, only those of the healthy engine passed.'
	@echo 'More to break: $(BIN)/python -m fixtures.engine --faults'

check: $(VENV)/.ready  ## format, lint and types of fmcheck itself
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

PYTEST := $(BIN)/python -m pytest -n $(JOBS)

quick: check  ## format, lint, types, and the tests that start no process
	$(PYTEST) -m '(pure or torch) and not sweep'

test: check  ## the whole test suite: every promise of the README
	$(PYTEST) -m 'not sweep'

sweep: $(VENV)/.ready  ## the rest of CI: the same on more releases, seeds and backends
	$(PYTEST) -m sweep

truth: $(VENV)/.ready  ## the linter on lines of released SGLang wheels: expected against given
	$(BIN)/python -m tests.truth

museum: $(VENV)/.ready  ## historic faults: which of them a lint rule or a run-time check catches
	$(BIN)/python -m tests.museum

drives: $(VENV)/.ready  ## releases of SGLang and vLLM on CPU: healthy silent, planted reported
	$(BIN)/python -m tests.drives
	$(BIN)/python -m tests.vllm_drives

engines: $(VENV)/.ready  ## whole engines of SGLang and vLLM on CPU, healthy and with a spoilt relay
	$(BIN)/python -m tests.engines
	$(BIN)/python -m tests.vllm_engines

reach: $(VENV)/.ready  ## child processes: each way to start one against each way to end, and kills
	$(BIN)/python -m tests.reach

gpu:  ## all that only a GPU shows, in eight minutes, by $(PYTHON) and its torch, into gpu.json
	$(PYTHON) -m tests.gpu

kernels: $(VENV)/.ready  ## the guard's kernels as binaries for GPUs that are not here: docs/gpu.md
	$(BIN)/python -m tests.gpu.binaries

benchmarks: $(VENV)/.ready  ## ratios: linter against ruff, watch, guard, streams, scaling
	$(BIN)/python -m tests.benchmarks --output benchmarks.json $(PARTS:%=--part %)

robust: $(VENV)/.ready  ## the linter over site-packages, the standard library and odd files
	$(BIN)/python -m tests.robust

SECONDS_OF_FUZZ ?= 300
fuzz: $(VENV)/.ready  ## the rules over mutated files, the contract loader over random contracts
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_OF_FUZZ)

prove: $(VENV)/.ready  ## faults planted into the built-in engine: which of them are noticed
	$(BIN)/python -m tests.prove engine --min-score 95

EACH ?= 20
prove-self: $(VENV)/.ready  ## mutants of fmcheck itself: which of them its own tests kill
	$(PIP) install --quiet -c constraints.txt -r tests/requirements-mutation.txt
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.prove_self --each $(EACH)

matrix: $(VENV)/.ready  ## the versions of Python, torch and pytest that can be had: each tried
	$(BIN)/python -m tests.matrix

corpus: $(VENV)/.ready  ## precision at first sight: TREES=25 lints the next 25 fresh trees, once
	$(BIN)/python -m tests.corpus_first_sight $(if $(TREES),sight --next $(TREES),status)

historic: $(VENV)/.ready  ## recall: historic faults in real files, before and after their fix
	$(BIN)/python -m tests.historic measure

corpus-diff: $(VENV)/.ready  ## what a change of the rules does to released trees
	$(BIN)/python -m tests.corpus_diff

docs: $(VENV)/.ready  ## the site, with a page a rule and a check, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .fmcheck_cache site fuzz-crashes
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
