# What a person types here. `make setup check test` is the way in; CONTRIBUTING.md says more.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# How many tests run at a time, each worker with a PostgreSQL of its own.
JOBS ?= 2

.PHONY: setup check check-types check-style check-rules test docs

setup: ## a virtual environment with every pinned version
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade -c constraints.txt pip setuptools hatchling
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[local,dev,code,grpc,keyring,nats,notify,otlp,parquet,redis,sql,vault]'

check: check-types check-style check-rules ## everything that can be known without running the product

check-types:
	$(BIN)/mypy

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	PYTHONPATH=verifier $(BIN)/lint-imports --no-logo --config verifier/pyproject.toml

check-rules:
	$(BIN)/python -m checks.migrations
	$(BIN)/python -m checks.verifier
	$(BIN)/python -m checks.links
	$(BIN)/python -m docs.generate

test: ## what the gate runs, on real PostgreSQL servers that start and stop with the tests
	JOBS=$(JOBS) $(BIN)/python .ci/tests -m "not nightly"

docs: ## the generated pages, and the site where zensical is installed
	$(BIN)/python -m docs.generate --write
	$(BIN)/python -m checks.links
	if [ -x $(BIN)/zensical ]; then $(BIN)/zensical build; fi
