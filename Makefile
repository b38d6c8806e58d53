# What a person types here. `make setup check test` is the way in; CONTRIBUTING.md says more.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup check test proofs docs

setup: ## a virtual environment with every pinned version
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt hatchling
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[local,dev,notify,otlp,redis,vault]'

check: ## everything that can be known without running the product
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m checks.sizes
	$(BIN)/python -m checks.words
	$(BIN)/python -m checks.links
	$(BIN)/python -m proofs kept
	$(BIN)/python -m checks.figures
	$(BIN)/python -m tests.requirements
	if [ -e docs/generate.py ]; then $(BIN)/python -m docs.generate; fi

test: ## every test, on a real PostgreSQL that starts and stops with them
	$(BIN)/python -m pytest

proofs: ## the experiments behind the published figures, in full; then the figures in README.md
	$(BIN)/python -m proofs all --full
	$(BIN)/python -m checks.figures --write

docs: ## the generated pages, and the site where zensical is installed
	$(BIN)/python -m tests.requirements --write
	$(BIN)/python -m checks.figures --write
	if [ -e docs/generate.py ]; then $(BIN)/python -m docs.generate --write; fi
	$(BIN)/python -m checks.links
	if [ -x $(BIN)/zensical ]; then $(BIN)/zensical build; fi
