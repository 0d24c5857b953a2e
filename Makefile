# `make demo` and `make test` do their whole set-up on a fresh machine: Python 3.11 or newer; Rust if you have it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# 1: build the native core; 0: pure Python. By default whatever this machine can do.
NATIVE ?= $(if $(shell command -v cargo 2>/dev/null),1,0)
STAMP := $(VENV)/.installed-native-$(NATIVE)
# BullMQ for Node; tests that want it are skipped without
NODE := tests/support/node
SOURCES := pyproject.toml Cargo.toml Cargo.lock build_backend/backend.py rust/build.rs $(wildcard rust/src/*.rs) $(wildcard lua/*.lua)

.PHONY: help demo test lint bench build clean install servers node

help: ## say what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: $(STAMP) ## kill workers on an embedded Valkey and watch their jobs come back
	@$(BIN)/mqsweep --version
	$(BIN)/mqsweep demo $(DEMO)

test: $(STAMP) servers node ## run the tests, on real servers
	@$(BIN)/mqsweep --version
	MQSWEEP_REQUIRE_RUST=$(NATIVE) $(BIN)/python -m pytest $(PYTEST)

lint: $(STAMP) ## ruff, mypy; rustfmt and clippy where cargo is
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ $(NATIVE) = 1 ]; then set -x; cargo fmt --check && cargo clippy --all-targets -- -D warnings && cargo test; fi

bench: $(STAMP) servers ## run the benchmarks (small sizes; see benches/)
	$(BIN)/python -m pytest benches --benchmark-enable $(PYTEST)

build: $(STAMP) ## build the wheels and the sdist into dist/
	$(BIN)/pip wheel --no-deps --wheel-dir dist -C native=$(NATIVE) .
	$(BIN)/pip wheel --no-deps --wheel-dir dist -C native=0 .
	$(BIN)/python -m build --sdist --outdir dist .

install: $(STAMP) ## set up the development environment

$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev
	rm -rf python/mqsweep/_core.*.so python/mqsweep/lua $(VENV)/.installed-native-*
	$(BIN)/python -m pip install --quiet --editable . -C native=$(NATIVE)
	@touch $@

servers:
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server; } >/dev/null || { echo "the tests need redis-server 7 on the PATH (Debian: apt-get install redis-server)"; exit 1; }

node: $(NODE)/node_modules/.package-lock.json

$(NODE)/node_modules/.package-lock.json: $(NODE)/package-lock.json
	@{ npm --prefix $(NODE) ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@; } || echo "no npm, or it failed: tests with workers in Node are skipped"

clean: ## remove what was built
	rm -rf $(VENV) target dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis python/mqsweep/_core.*.so python/mqsweep/lua $(NODE)/node_modules
	find . -name __pycache__ -type d -exec rm -rf {} +
