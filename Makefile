# `make demo` and `make test` set everything up on a fresh machine; `make help` lists the rest.

# The newest line of Python that the pinned versions were tested on, else whatever python3 is.
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
TORCH := $(shell grep '^torch==' constraints.txt)
PYTEST_ARGS ?=
# Test processes side by side (0: one after the other in this process).
TEST_WORKERS ?= 2
# A benchmark and its options; all of them in a small form if omitted.
BENCH_ARGS ?= --small

# Several worker processes share the cores: without this each would start a thread per core.
test test-long demo: export OMP_NUM_THREADS ?= 1

.PHONY: help venv demo test test-long test-matrix lint format bench docs clean distclean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

venv: $(STAMP)  ## make .venv with the pinned versions and this package (editable)

# Made anew when a requirement or a pin changes. An interrupted environment without pip is replaced.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, found " + sys.version.split()[0] + ": set PYTHON=" if sys.version_info < (3, 11) else 0)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --quiet --upgrade pip || echo "pip stays as it is"
	@echo "installing the pinned versions into $(VENV) (some minutes)"
	@$(PIP) install --quiet --constraint constraints.txt "$(TORCH)"
	@$(PIP) install --quiet --constraint constraints.txt --editable ".[test]"
	@touch $(STAMP)

demo: $(STAMP)  ## train on a simulated screen with two workers, predict, write an HTML report
	$(BIN)/python examples/demo.py

test: lint  ## everything that must pass: lint, types, tests
	$(BIN)/python -m pytest -m "not long" -n $(TEST_WORKERS) $(PYTEST_ARGS)

test-long: $(STAMP)  ## the tests with hundreds of repetitions
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

test-matrix:  ## the quick tests on each Python found, with the oldest, pinned and newest packages (downloads gigabytes)
	tools/test_matrix.sh

lint: $(STAMP)  ## ruff (lint and format) and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## every benchmark in a small form (BENCH_ARGS="NAME --option": one as it is)
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

docs: $(DOCS_STAMP)  ## build the documentation into docs/_build/html and check its links
	rm -rf docs/_build
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/_ext/check_links.py docs/_build/html

$(DOCS_STAMP): $(STAMP)
	@$(PIP) install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $(DOCS_STAMP)

clean:  ## remove what building, testing and the demo leave behind
	rm -rf build dist demo_output docs/_build docs/_drawn docs/notebooks docs/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## the same and the environment
	rm -rf $(VENV)
