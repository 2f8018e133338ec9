# Requires Python 3.11 and make. Each target installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JAX = .venv-jax/bin
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
EXPERIMENTS = $(addprefix reproduce-,multi30k length_penalty table3 extrapolation parsing parsing_variants \
    parsing_auto_trees tiny_plus back_translation)

.PHONY: demo install environments test test-slow test-all test-jax soak bench gpu-report $(EXPERIMENTS) docs lint format clean

# Train on the embedded English-German problem and translate test sentences: under 10 minutes on two CPU cores.
demo: $(VENV)/.installed
	$(BIN)/python -m keras_transformer.train --problem=toy_ende --hparams=toy
	$(BIN)/python -m keras_transformer.evaluate --run=runs/toy_ende-toy --split=test --samples=10

# Number of test processes. Each loads TensorFlow, so memory limits the number as much as cores do.
PROCESSES ?= 2
PYTEST = python -m pytest -n $(PROCESSES) --dist=worksteal

install: $(VENV)/.installed

# Both test environments; `make -j2 environments` installs them at the same time.
environments: $(VENV)/.installed-dev .venv-jax/.installed

# The tests to run after every change.
test: $(VENV)/.installed-dev lint
	$(BIN)/$(PYTEST) $(or $(FILES),tests/unit tests/integration)

# Tests of notebooks, the wheel, several processes, both backends, a browser, kills and benchmarks.
test-slow: $(VENV)/.installed-dev
	$(BIN)/$(PYTEST) tests/slow
	$(BIN)/$(PYTEST) tests/unit -m hypothesis --hypothesis-profile=ci-slow

test-all: test test-slow

# The tests marked `backend`, on JAX, in an environment without TensorFlow.
test-jax: .venv-jax/.installed
	KERAS_BACKEND=jax $(JAX)/$(PYTEST) -m backend

# The longest tests, and a training run that is killed fifty times.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tests/slow/soak.py

# Training speed compared with other engines, which are installed on first use; RAW_DIR=FOLDER adds Multi30k.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/train_step.py $(if $(RAW_DIR),--raw_dir=$(RAW_DIR))

# Speed, memory and BLEU on one accelerator with JAX, in at most 25 minutes; RAW_DIR=FOLDER adds Multi30k.
gpu-report: .venv-jax/.installed
	KERAS_BACKEND=jax $(JAX)/python benchmarks/gpu_report.py --json=docs/results/gpu.jsonl --page=gpu_report.md \
		$(if $(RAW_DIR),--raw_dir=$(RAW_DIR))

# The missing rows of an experiment in docs/results/*.jsonl, or in the file ROWS=FILE.
$(EXPERIMENTS): reproduce-%: $(VENV)/.installed
	$(BIN)/python benchmarks/reproduce.py $* $(if $(RAW_DIR),--raw_dir=$(RAW_DIR)) $(if $(ROWS),--json=$(ROWS))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/wording.py

# HTML documentation in docs/_build. Warnings, such as those about broken links, are errors.
docs: $(VENV)/.installed-dev
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -r requirements.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt requirements-docs.txt
	$(BIN)/python $(PIP_INSTALL) -r requirements-dev.txt
	touch $@

# Packages for the tests marked `backend`, in the versions of requirements-dev.txt.
JAX_PACKAGES = ^(pytest|hypothesis|ctranslate2|fastapi|httptools|prometheus|uvicorn|uvloop|tensorboard|selenium)
.venv-jax/.installed: requirements-jax.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv .venv-jax
	$(JAX)/python $(PIP_INSTALL) -r requirements-jax.txt $$(grep -E '$(JAX_PACKAGES)' requirements-dev.txt) -e .
	touch $@

clean:
	rm -rf $(VENV) .venv-jax build dist .pytest_cache .ruff_cache .hypothesis
