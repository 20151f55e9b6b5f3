PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-gpu lint clean

# Train a small network on the digits that ship with scikit-learn and print its three evaluations.
demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py

# Style, types, then all tests. The tests of the report need the browser chromium.
test: lint
	$(BIN)/python -m pytest -n auto

# The tests that concern the GPU, on it; GPU_PYTHON names an interpreter with another torch than the pinned one.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) tests/gpu.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The demo needs little, and is there quickly; everything else comes with the tests.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e ".[sklearn]"
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
