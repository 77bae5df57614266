# Every verb sets up what it needs; nothing is installed twice.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?= ../shared/data

.PHONY: setup demo test slow check bench reproduce docs clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/offpolicy demo

test: setup
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup
	$(BIN)/python benchmarks/run.py

reproduce: setup
	$(BIN)/offpolicy reproduce $(if $(FULL),full,core --quick) --data $(DATA) --out reproduction/$(if $(FULL),full,quick)

docs: setup
	$(BIN)/python -m offpolicy.estimators.catalogue > docs/estimators.md
	$(BIN)/python -m offpolicy.cli.pages > docs/commands.md
	$(BIN)/python -m offpolicy.cli.learning_page
	$(BIN)/python -m offpolicy.cli.reproduction_page

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
