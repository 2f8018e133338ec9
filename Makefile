# Needs Python 3.11, make and, for `make demo` and `make test`, nothing else: both set up what they use.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JAX = .venv-jax/bin
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
EXPERIMENTS = $(addprefix reproduce-,multi30k length_penalty table3 extrapolation parsing tiny_plus)

.PHONY: demo install environments test test-slow test-all test-jax soak bench $(EXPERIMENTS) docs lint format clean

# Trains a Transformer on the embedded English-German problem and translates unseen sentences: under 10 minutes
# on two CPU cores.
demo: $(VENV)/.installed
	$(BIN)/python -m keras_transformer.train --problem=toy_ende --hparams=toy
	$(BIN)/python -m keras_transformer.evaluate --run=runs/toy_ende-toy --split=test --samples=10

# Number of test processes. Each loads TensorFlow and trains: memory limits them as much as cores do.
PROCESSES ?= 2
PYTEST = python -m pytest -n $(PROCESSES) --dist=worksteal

install: $(VENV)/.installed

# Both environments for tests; `make -j2 environments` installs them at the same time.
environments: $(VENV)/.installed-dev .venv-jax/.installed

# The tests to run after every change.
test: $(VENV)/.installed-dev lint
	$(BIN)/$(PYTEST) $(or $(FILES),tests/unit tests/integration)

# Notebooks, the wheel in an empty environment, several processes, both backends, a browser, kills, benchmarks.
test-slow: $(VENV)/.installed-dev
	$(BIN)/$(PYTEST) tests/slow
	$(BIN)/$(PYTEST) tests/unit -m hypothesis --hypothesis-profile=ci-slow

test-all: test test-slow

# The tests marked `backend`, on JAX, in an environment without TensorFlow.
test-jax: .venv-jax/.installed
	KERAS_BACKEND=jax $(JAX)/$(PYTEST) -m backend

# The tests that are too long for `make test-slow`, then one training run that is killed fifty times.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tests/slow/soak.py

# Training speed beside other engines, which are installed the first time; with RAW_DIR=FOLDER an epoch of Multi30k, too.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/train_step.py $(if $(RAW_DIR),--raw_dir=$(RAW_DIR))

# Published numbers, once more, and better ones: the next open rows of docs/results/multi30k.jsonl, table3.jsonl, ….
$(EXPERIMENTS): reproduce-%: $(VENV)/.installed
	$(BIN)/python benchmarks/reproduce.py $* $(if $(RAW_DIR),--raw_dir=$(RAW_DIR))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as pages, in docs/_build; a link that leads nowhere is an error.
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

# What the tests marked `backend` need, in the versions of requirements-dev.txt.
JAX_PACKAGES = ^(pytest|hypothesis|ctranslate2|fastapi|prometheus|uvicorn|tensorboard|selenium)
.venv-jax/.installed: requirements-jax.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv .venv-jax
	$(JAX)/python $(PIP_INSTALL) -r requirements-jax.txt $$(grep -E '$(JAX_PACKAGES)' requirements-dev.txt) -e .
	touch $@

clean:
	rm -rf $(VENV) .venv-jax build dist .pytest_cache .ruff_cache .hypothesis
