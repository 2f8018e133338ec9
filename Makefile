# Needs Python 3.11, make and, for `make demo` and `make test`, nothing else: both set up what they use.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint format clean

# Trains a Transformer on the embedded English-German problem and translates unseen sentences: under 10 minutes
# on two CPU cores.
demo: $(VENV)/.installed
	$(BIN)/python -m keras_transformer.train --problem=toy_ende --hparams=toy
	$(BIN)/python -m keras_transformer.evaluate --run=runs/toy_ende-toy --split=test --samples=10

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
