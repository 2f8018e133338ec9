# Needs Python 3.11, make and, for `make demo` and `make test`, nothing else: both set up what they use.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JAX = .venv-jax/bin
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
EXPERIMENTS = $(addprefix reproduce-,multi30k length_penalty table3 extrapolation parsing tiny_plus)

.PHONY: demo install test test-jax soak bench $(EXPERIMENTS) docs lint format clean

# Trains a Transformer on the embedded English-German problem and translates unseen sentences: under 10 minutes
# on two CPU cores.
demo: $(VENV)/.installed
	$(BIN)/python -m keras_transformer.train --problem=toy_ende --hparams=toy
	$(BIN)/python -m keras_transformer.evaluate --run=runs/toy_ende-toy --split=test --samples=10

# Test processes: each loads TensorFlow and trains, so they are limited by memory as much as by cores.
PROCESSES ?= 2
# Files in their order: the default begins with those of many tests, and ends with long ones on one process alone.
PYTEST = python -m pytest -n $(PROCESSES) --dist=loadfile --no-loadscope-reorder

install: $(VENV)/.installed

test: $(VENV)/.installed-dev lint
	$(BIN)/$(PYTEST) $(FILES)

# Everything that JAX computes, in an environment without TensorFlow.
test-jax: .venv-jax/.installed
	KERAS_BACKEND=jax $(JAX)/$(PYTEST) $(addprefix tests/test_,$(addsuffix .py,$(JAX_TESTS)))

JAX_TESTS = backends layers transformer model_summary schedule beam_search translator training evaluation known_scores
JAX_TESTS += positions word_heads tree_decoding optimizer memory learning attention_kinds cost candidates
JAX_TESTS += decoding_features jax_devices multiworker presence projected_loss remat normalization product dropout events attention_pictures serve keras_losses saving
JAX_TESTS += nonfinite_outputs

# The long tests that `make test` leaves out, then one training that is killed fifty times.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tests/faults/soak.py

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

# The test packages are those of requirements-dev.txt, without the other requirements that it includes.
.venv-jax/.installed: requirements-jax.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv .venv-jax
	$(JAX)/python $(PIP_INSTALL) -r requirements-jax.txt $$(grep -v '^-' requirements-dev.txt) -e .
	touch $@

clean:
	rm -rf $(VENV) .venv-jax build dist .pytest_cache .ruff_cache .hypothesis
