# Every verb sets up what it needs; nothing is installed twice.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?= ../shared/data

.PHONY: setup demo test slow check bench reproduce docs site packages release-check clean
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
	$(BIN)/python benchmarks/claims.py
	$(BIN)/python benchmarks/pictures.py

site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file website/mkdocs.yml

packages: setup
	test -x build/tools/bin/twine || ($(PYTHON) -m venv build/tools && build/tools/bin/pip install --quiet build twine)
	rm -rf dist
	build/tools/bin/python -m build --outdir dist .
	build/tools/bin/twine check --strict dist/*
	$(BIN)/python benchmarks/install.py $(if $(JSON),--json) dist/*

release-check: setup
	$(BIN)/python .ci/release_check.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
