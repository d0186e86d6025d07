# Start with `make demo` and `make test`. Each installs what it needs into .venv, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
CORE   := $(VENV)/.core-installed
DEV    := $(VENV)/.dev-installed
DOCS   := $(VENV)/.docs-installed
BENCH  := $(VENV)/.bench-installed
THREADS := OMP_NUM_THREADS=1
# compiled files are written even if the environment says otherwise: tests start many processes
TESTS  := $(THREADS) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -q

.DEFAULT_GOAL := help
.PHONY: help install demo test quick soak lint types imports rooms bench docs clean

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / — /'

install: $(CORE) ## install nearkin into .venv

demo: $(CORE)    ## solve a small task on data that ships with the dependencies
	$(BIN)/nearkin demo

test: $(DEV) lint types imports ## lint, types, imports between packages, doctests and tests
	$(TESTS) -m "not soak" --ignore=tests/test_language.py

quick: $(DEV) lint types imports ## lint, types, imports and the tests that are not slow, in less than three minutes
	$(TESTS) -m "not slow" tests

# long stochastic tests, SOAK_KILLS kills of each command, and fuzzing with more inputs than in `make test`: SOAK_INPUTS
# for each format, from SOAK_SEED; SOAK_TESTS chooses some of the tests, as -k of pytest does
SOAK_INPUTS ?= 10000
SOAK_SEED   ?= 1
SOAK_KILLS  ?= 50
SOAK_TESTS  ?=
soak: $(DEV)     ## long stochastic tests, series of faults, long fuzzing of all readers of files and strings
	NEARKIN_FUZZ_INPUTS=$(SOAK_INPUTS) NEARKIN_FUZZ_SEED=$(SOAK_SEED) $(TESTS) tests/fuzz
	NEARKIN_SOAK_KILLS=$(SOAK_KILLS) $(TESTS) -m soak -k "$(SOAK_TESTS)" tests

lint: $(DEV)     ## style, formatting, plain language
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q --noconftest tests/test_language.py

types: $(DEV)    ## mypy, strict on src
	$(BIN)/mypy

imports: $(DEV)  ## imports between packages
	$(BIN)/lint-imports

rooms: imports

bench: $(BENCH)  ## benchmarks; results as JSON in benchmarks/
	@for file in $$(grep -l __main__ benchmarks/*.py); do echo "$$file"; $(THREADS) $(BIN)/python $$file || exit 1; done
	@$(BIN)/python docs/summaries.py

docs: $(DOCS)    ## the manual, into site/
	$(BIN)/mkdocs build --strict

clean:           ## delete .venv and everything built
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: nearkin needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: this Python has no venv; on Debian: apt-get install python3-venv"; exit 1; }

# torch first and pinned, so that no other package installs a CUDA build
$(CORE): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing nearkin and its dependencies into .venv (a minute or two, once)"
	@$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV): $(CORE)
	@echo "installing the packages that the tests need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS): $(CORE)
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(BENCH): $(CORE)
	@$(PIP) install -c constraints.txt -e '.[bench,gpytorch,vision,hf]'
	@$(PIP) install --no-deps -r benchmarks/peers.txt
	@touch $@
