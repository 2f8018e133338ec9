"""Tests of scores with a model that copies the source but replaces the first few words, so its outputs are known."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import sacrebleu
from keras import ops

from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.decoding import evaluation
from keras_transformer.decoding.translator import Hypothesis
from keras_transformer.distributed.workers import Workers
from keras_transformer.metrics.bleu import Score
from keras_transformer.models.loss import SmoothedCrossEntropy
from keras_transformer.runs.checkpoint import assign_model, model_arrays
from keras_transformer.runs.run import Run
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.training import callbacks
from keras_transformer.training.collapse import SourceHealth
from keras_transformer.training.signals import StopRequest

pytestmark = pytest.mark.backend

CHANGED = {"train": 1, "validation": 2, "test": 5}
"""{split: number of source words, out of ten, that the reference replaces with two words each}."""


@dataclasses.dataclass(kw_only=True)
class Echo(TranslationProblem):
    """Problem whose references copy the sources, but replace each of the last few words with two other words.

    `CHANGED` contains the number of replaced words for each split.
    """

    name, corpus, source, target = "echo", "echo", "en", "de"

    def pairs(self, split):
        for line in range(6):
            words, changed = [f"s{line}w{i}" for i in range(10)], CHANGED[split]
            yield " ".join(words), " ".join(words[:-changed] + [f"{split}{line}"] * 2 * changed)


EchoReversed = Echo.reverse_class("echo_rev")


class Copier(keras.Model):
    """Model with a single weight, which is the number of words that `copy` replaces."""

    def __init__(self):
        super().__init__(name="copier")
        self.errors = self.add_weight(name="errors", shape=(), initializer="zeros")


def copy(text, errors):
    return " ".join(["?"] * errors + text.split()[errors:])


class CopyingTranslator:
    """Substitute for `Translator` that returns the output of `copy`."""

    def __init__(self, model, tokenizer, hparams):
        self.model = model

    def translate(self, texts, *_, **__):
        return [[Hypothesis(copy(text, int(self.model.errors.value)), (1,), 0.0, 0.0)] for text in texts]

    def score(self, sources, targets):
        return [Hypothesis(target, (1,), -1.0, -1.0) for target in targets]


class EchoRun(Run):
    """A run of `Copier`. The model in the checkpoint at step n replaces n words."""

    problem, tokenizer = Echo(), types.SimpleNamespace(constraint=None)

    def make_model(self, weights, precision="float32"):
        model = Copier()
        assign_model(model, weights, "the checkpoint")
        return model


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "Translator", CopyingTranslator)
    monkeypatch.setattr(callbacks.validation, "Translator", CopyingTranslator)
    run, model = EchoRun(tmp_path, {"hparams": {}}), Copier()
    for step in range(1, 5):
        model.errors.assign(step)
        run.checkpoints.save(step, {"weights": model_arrays(model)}, {})
    run.checkpoints.mark_best(2, {"score": 1.0, "nll": 1.0, "loss": 1.0})
    monkeypatch.setattr(Run, "open", staticmethod(lambda path: run))
    return run


def expected(metric, split, errors, problem=EchoRun.problem):
    """Return the score that sacreBLEU computes for the outputs of `copy`."""
    sources, references = zip(*problem.examples(split))
    outputs = [copy(source, errors) for source in sources]
    return pytest.approx(getattr(sacrebleu, f"corpus_{metric}")(outputs, [references]).score)


def test_score_checkpoints_uses_each_checkpoint(run):
    names = [3, "best", 1, "last"]
    found = list(evaluation.score_checkpoints(run, names))
    assert [name for name, _ in found] == names
    assert [score.value for _, score in found] == [expected("bleu", "validation", errors) for errors in (3, 2, 1, 4)]
    ((_, score),) = evaluation.score_checkpoints(run, [1], "test")
    assert score.value == expected("bleu", "test", 1)


@pytest.mark.parametrize("split", CHANGED)
@pytest.mark.parametrize(("checkpoint", "errors"), [(None, 2), ("last", 4), (3, 3), ("1", 1)])
def test_evaluate_scores_outputs_against_references(run, split, checkpoint, errors):
    found = evaluation.evaluate("run", checkpoint, split)
    scores = {score.name: score.value for score in found.scores}
    assert scores["sacreBLEU"] == expected("bleu", split, errors) and found.scores[-1].name == "sacreBLEU"
    assert scores["chrF"] == expected("chrf", split, errors)
    assert found.checkpoint == {"name": checkpoint or "best", "steps": [errors]}


@pytest.mark.parametrize(("problem", "language"), [(Echo(), "de"), (EchoReversed(), "en")])
def test_evaluate_passes_target_language_to_paper_bleu(run, monkeypatch, problem, language):
    given = []
    monkeypatch.setattr(evaluation, "check_installed", lambda: None)
    monkeypatch.setattr(evaluation, "paper_bleu", lambda *texts: given.extend(texts) or Score("paper BLEU", 0.0, ""))
    monkeypatch.setattr(EchoRun, "problem", problem)
    evaluation.evaluate("run", 1, "validation", with_paper_bleu=True)
    sources, references = zip(*problem.examples("validation"))
    assert given == [[copy(source, 1) for source in sources], list(references), language]


@pytest.mark.parametrize(("problem", "metric"), [(Echo(), "score"), (EchoReversed(), "chrf")])
def test_validation_decodes_sources_of_its_split(run, monkeypatch, problem, metric):
    health = {"encoder_deviation": 1.0, "nll_shuffled": 9.0}
    monkeypatch.setattr(callbacks.validation, "SourceHealth", lambda *_: types.SimpleNamespace(measure=lambda: health))
    model = Copier()
    model.evaluate = lambda *_, **__: {"loss": 3.0, "nll": 2.0, "perplexity": 7.4}
    run.config["hparams"]["best_metric"] = metric
    callback = callbacks.ValidationCallback(0, run, problem, None, StopRequest(), Workers())
    callback.set_model(model)
    for errors in (1, 0):
        model.errors.assign(errors)
        callback.evaluate(errors)
        logged = run.metrics()[-1]
        assert logged["score"] == logged["sacreBLEU"] == expected("bleu", "validation", errors, problem)
        assert logged.get("chrF") == (expected("chrf", "validation", errors, problem) if metric == "chrf" else None)
        assert (logged["step"], logged["loss"], logged["nll"], logged["nll_shuffled"]) == (errors, 3.0, 2.0, 9.0)
        source, reference = next(problem.examples("validation"))
        assert logged["samples"][0] == {"source": source, "output": copy(source, errors), "reference": reference}


class TokenCopier(Copier):
    """Model that predicts the tokens of the source with near certainty."""

    def __init__(self):
        super().__init__()
        self.loss = SmoothedCrossEntropy(label_smoothing=0.5)

    def encode(self, source):
        return ops.one_hot(source, 7)

    def states(self, inputs, training):
        return ops.one_hot(inputs[0], 7)

    def logits(self, states):
        return 20.0 * states


class Batches(list):
    num_batches = 3


def test_nll_shuffled_pairs_targets_with_other_sources():
    tokens = np.array([[4, 5, 6, 1], [5, 4, 1, PAD], [6, 6, 6, 1]], "int32")
    batch = (tokens, tokens), tokens, None
    health = SourceHealth(TokenCopier(), Batches([None, batch, None]))
    wrong = (np.roll(tokens, 1, axis=0) != tokens)[tokens != PAD].mean()
    # Without label smoothing, the loss is almost 0 nats if the label equals the source token, and 20 nats otherwise.
    assert health.measure()["nll_shuffled"] == pytest.approx(20 * wrong, abs=1e-3) and wrong > 0.5
