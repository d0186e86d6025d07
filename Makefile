# Two commands for a stranger: `make demo` and `make test`. Each sets up what it needs in .venv, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
CORE   := $(VENV)/.core-installed
DEV    := $(VENV)/.dev-installed
DOCS   := $(VENV)/.docs-installed
BENCH  := $(VENV)/.bench-installed
THREADS := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install demo test quick soak lint types rooms check bench docs clean

help:            ## say what there is to make
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / — /'

install: $(CORE) ## install nearkin into .venv

demo: $(CORE)    ## the main job on data that ships with the packages
	$(BIN)/nearkin demo

test: $(DEV) lint types rooms ## lint, types, rooms, doctests and tests
	$(THREADS) $(BIN)/python -m pytest -n 2 -q

quick: $(DEV) lint types rooms ## lint, types, rooms and the tests that are not slow, in less than three minutes
	$(THREADS) $(BIN)/python -m pytest -n 2 -q -m "not slow" tests

# fuzzing with more and other inputs than `make test` has: SOAK_INPUTS for each format, other ones for another SOAK_SEED
SOAK_INPUTS ?= 10000
SOAK_SEED   ?= 1
soak: $(DEV)     ## long fuzzing of everything that is read from files and strings
	$(THREADS) NEARKIN_FUZZ_INPUTS=$(SOAK_INPUTS) NEARKIN_FUZZ_SEED=$(SOAK_SEED) $(BIN)/python -m pytest -n 2 -q tests/fuzz

lint: $(DEV)     ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)    ## mypy, strict on src
	$(BIN)/mypy

rooms: $(DEV)    ## who imports whom
	$(BIN)/lint-imports

bench: $(BENCH)  ## benchmarks; results as JSON in benchmarks/
	@for file in $$(grep -l __main__ benchmarks/*.py); do echo "$$file"; $(THREADS) $(BIN)/python $$file || exit 1; done
	@$(BIN)/python docs/summaries.py

docs: $(DOCS)    ## the manual, into site/
	$(BIN)/mkdocs build --strict

clean:           ## forget .venv and everything built
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: nearkin needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: this Python has no venv; on Debian: apt-get install python3-venv"; exit 1; }

# torch first and pinned, so that nothing else can ask for a CUDA build
$(CORE): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing nearkin and its dependencies into .venv (a minute or two, once)"
	@$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV): $(CORE)
	@echo "installing what the tests need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS): $(CORE)
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(BENCH): $(CORE)
	@$(PIP) install -c constraints.txt -e '.[bench,gpytorch,vision,hf]'
	@$(PIP) install --no-deps -r benchmarks/peers.txt
	@touch $@
