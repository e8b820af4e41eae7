# Two commands on a fresh machine:
#   make train   sets everything up and trains the shipped tiny model on the CPU
#   make test    sets everything up and runs the checks and the tests
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# From the repository root, ./kernels must not shadow the package of that name.
export PYTHONSAFEPATH := 1
export PYTHON

.PHONY: setup train test test-fast lint clean

setup: $(VENV)/.installed

$(VENV)/.packages: requirements/cpu.lock requirements/system.sh
	@sh requirements/system.sh
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.packages pyproject.toml src/polymath/__init__.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m polymath.vllm_metadata
	@touch $@

train: setup
	$(BIN)/polymath train experiment=quickstart resume=auto

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest

test-fast: setup
	$(BIN)/python -m pytest -m "not slow"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
