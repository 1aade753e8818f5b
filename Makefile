# `make demo` and `make test` set up .venv from nothing; `make matrix` makes one environment a torch
# under .venv-matrix.
PYTHON ?= python3
TORCH ?= 2.13.0
FLYDSL ?= 0.5.0
# What to install beside the package: `EXTRAS=test,ray` also runs the test of a Ray cluster.
EXTRAS ?= test
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/build/inductor
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo model test lint matrix clean

$(VENV)/.ready-%: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "torch==$(TORCH)" "flydsl==$(FLYDSL)"
	$(BIN)/pip install -q -e ".[$(subst -,$(comma),$*)]"
	touch $@

demo: $(READY)
	INDUCTOR_FLYDSL_DEVICE=emulator $(BIN)/inductor-flydsl demo

# A sentence encoder with its published weights; the numbers must be eager's.
model: $(VENV)/.ready-model
	INDUCTOR_FLYDSL_DEVICE=emulator $(BIN)/python examples/minilm.py

# One thread a process: the workers share the cores.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

matrix:
	OMP_NUM_THREADS=1 $(PYTHON) tests/matrix.py

clean:
	rm -rf $(VENV) .venv-matrix build
