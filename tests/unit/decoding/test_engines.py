"""Tests of `choose_engine`, which selects Keras or CTranslate2 for translation."""

import importlib.util
import sys
import types

import pytest

import keras_transformer as kt
from keras_transformer.decoding.engines import choose_engine
from keras_transformer.decoding.search_options import Sampling, SearchOptions


@pytest.fixture
def library(monkeypatch):
    """Stand-in for the package CTranslate2 on a machine without a GPU."""
    library = types.SimpleNamespace(gpus=0, get_cuda_device_count=lambda: library.gpus, __spec__=object())
    monkeypatch.setitem(sys.modules, "ctranslate2", library)
    return library


def run(**hparams):
    tokenizer = types.SimpleNamespace(constraint=None)
    return types.SimpleNamespace(hparams=kt.HParams().replace(**hparams), tokenizer=tokenizer)


PARSER = types.SimpleNamespace(hparams=kt.HParams(), tokenizer=types.SimpleNamespace(constraint=min))
UNSUPPORTED = [
    ({"runs": [run(), run()]}, "ensembles"),
    ({"checkpoint": [3, 6]}, "ensembles"),
    ({"precision": "bfloat16"}, "precision=bfloat16"),
    ({"jit_compile": True}, "jit_compile"),
    ({"keras_option": "--alignments"}, "--alignments"),
    ({"options": SearchOptions(no_repeat_ngram=3)}, "no_repeat_ngram"),
    ({"options": SearchOptions(max_source_length=2000)}, "max_source_length above 1,024"),
    ({"runs": [run(model="word_aligned_transformer", positions="learned")]}, "models with model=word_aligned"),
    ({"runs": [run(d_k=8)]}, "models with d_k=8"),
    ({"runs": [run(max_length=2000)]}, "models with max_length above 1,024"),
    ({"runs": [PARSER]}, "parsers"),
]


@pytest.mark.parametrize(("arguments", "reason"), UNSUPPORTED, ids=[reason for _, reason in UNSUPPORTED])
def test_choose_engine_keeps_keras_for_the_rest(library, arguments, reason):
    arguments = {"runs": [run()], **arguments}
    assert choose_engine("auto", **arguments) == choose_engine("keras", **arguments) == "keras"
    with pytest.raises(kt.UserError, match=f"engine ctranslate2 does not support {reason}.* Use engine keras."):
        choose_engine("ctranslate2", **arguments)


def test_choose_engine_takes_ctranslate2_if_possible(library, caplog):
    caplog.set_level("INFO")
    assert choose_engine("auto", [run()]) == choose_engine("ctranslate2", [run()], ["best"]) == "ctranslate2"
    assert caplog.messages == ["translating with CTranslate2 (use --engine=keras for Keras)"]
    library.gpus = 1
    assert choose_engine("auto", [run()]) == "keras" and choose_engine("ctranslate2", [run()]) == "ctranslate2"


def test_choose_engine_samples_with_keras_by_default(library):
    options = SearchOptions(sampling=Sampling(), repetition_penalty=1)
    assert choose_engine("auto", [run()], options=options) == "keras"
    assert choose_engine("ctranslate2", [run()], options=options) == "ctranslate2"


def test_choose_engine_names_the_missing_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_engine("auto", [run()]) == "keras"
    with pytest.raises(kt.UserError, match=r"pip install 'keras-transformer-toolkit\[ctranslate2\]', or use engine"):
        choose_engine("ctranslate2", [run()])
    with pytest.raises(kt.UserError, match="unknown engine 'ctranslate': did you mean ctranslate2"):
        choose_engine("ctranslate", [run()])
