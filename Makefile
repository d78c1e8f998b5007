# `make demo` and `make test` set up everything they need in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo test check truth museum benchmarks clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.ready: pyproject.toml constraints.txt tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[pytest]' torch -r tests/requirements.txt
	@touch $@

demo: $(VENV)/.ready  ## a lint finding and a watched test run, on the built-in engine
	$(BIN)/fmcheck lint fixtures/demo; test $$? -eq 1
	$(BIN)/python -m pytest -p fmcheck fixtures/engine; test $$? -eq 1
	@echo 'As meant: the linter found the planted fault, and only the healthy engine passed.'
	@echo 'More to break: $(BIN)/python -m fixtures.engine --faults'

check: $(VENV)/.ready  ## format, lint and types of fmcheck itself
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check  ## the whole test suite
	$(BIN)/python -m pytest

truth: $(VENV)/.ready  ## expected against given, over released SGLang wheels
	$(BIN)/python -m tests.truth

museum: $(VENV)/.ready  ## historic faults: which of them a lint rule catches
	$(BIN)/python -m tests.museum

benchmarks: $(VENV)/.ready  ## ratios: linter, watch, start-up, fused gather
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.fused_gather

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
