# One command sets up and runs the broker: make run. One sets up and runs the tests: make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test build debug lint types imports unit integration crash soak bench clean tools

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip

$(VENV)/.installed: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/pip install -q -e ".[test]" Cython==3.3.1
	touch $@

# Builds the extensions in place; quick when nothing changed.
build: $(VENV)/.installed
	$(BIN)/python setup.py -q build_ext --inplace
	$(BIN)/python -m compileall -q kbroker

run: build
	$(BIN)/kbroker serve $(ARGS)

test: build
	scripts/run_tests.sh

lint: build
	$(BIN)/ruff check .

types: build
	$(BIN)/mypy

imports: build
	$(BIN)/lint-imports

tools:
	scripts/fetch_tools.sh

# The same tests on a build with bounds checks and internal invariants.
debug: $(VENV)/.installed
	KBROKER_DEBUG=1 $(BIN)/python setup.py -q build_ext --inplace --force
	$(BIN)/python -m pytest tests/unit tests/crash -m "not slow and not crash" -q
	$(BIN)/python setup.py -q build_ext --inplace --force

clean:
	rm -rf build dist kbroker.egg-info
	find kbroker -name '*.so' -delete
