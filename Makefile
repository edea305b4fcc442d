# `make demo` and `make test` need Python >= 3.11 and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# Where there is an NVIDIA driver, the demo gets what the in-repo kernels and telemetry need too.
EXTRAS := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo '[gpu]')
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types unit proof kernels docs-tables format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/demo  ## install, run suites/smoke.yaml on what is here, print the table
	$(BIN)/fabench run suites/smoke.yaml

test: lint types unit  ## everything a change must pass: ruff, mypy --strict, pytest
check: test

lint: $(VENV)/dev  ## ruff, on style and on format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev  ## mypy --strict
	$(BIN)/mypy

# The order of files is tests/conftest.py's, longest first; without the option they go by their number of tests.
unit: $(VENV)/dev  ## pytest, on two processes
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not slow'

# Nearly all of its time is in one file: the tests of a file are spread.
proof: $(VENV)/dev  ## the longer proofs that CI has no time for
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 20 -m slow

kernels: $(VENV)/dev  ## compile every kernel for several architectures; fail on spills, stack, too much shared memory
	$(BIN)/fabench kernels stats --fresh --only flash_ --max-seconds 2 --arch sm_80,sm_89,sm_90a,sm_100a,sm_120a
	$(BIN)/fabench kernels stats --fresh --only 'triton ' --arch sm_80,sm_89,sm_90a

docs-tables: $(VENV)/dev  ## rewrite the tables of README and docs from the files in results/
	$(BIN)/python docs/tables.py

format: $(VENV)/dev  ## write the format that lint asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Error: '$(PYTHON)' must be Python 3.11 or newer; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and by name, so that pip takes the pinned build and not a larger one that another package would pull in.
$(VENV)/demo: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable '.$(EXTRAS)'
	@touch $@

$(VENV)/dev: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/demo
