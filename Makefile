# Each target sets up its own virtual environment from nothing: .venv for development and demo,
# .venv-matrix/* for the compatibility matrix.
PYTHON ?= python3
TORCH ?= 2.13.0
FLYDSL ?= 0.5.0
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/build/inductor
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint matrix clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "torch==$(TORCH)" "flydsl==$(FLYDSL)"
	$(BIN)/pip install -q -e ".[test]"
	touch $@

demo: $(VENV)/.ready
	INDUCTOR_FLYDSL_DEVICE=emulator $(BIN)/inductor-flydsl demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(WORKERS) tests

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

matrix:
	$(PYTHON) tests/matrix.py

clean:
	rm -rf $(VENV) .venv-matrix build
