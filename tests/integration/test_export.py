"""Tests that exported models give the same results as the original models in this package."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.quick import eager_functions
from helpers.sharing import shared_folder

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.runs.run import Run

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_transformer.conversion.ctranslate2 import QUANTIZATIONS  # noqa: E402
from keras_transformer.exports import saved_model  # noqa: E402
from keras_transformer.exports.ctranslate2 import export_ctranslate2  # noqa: E402
from keras_transformer.exports.description import describe  # noqa: E402
from keras_transformer.exports.saved_model import export_saved_model  # noqa: E402

SENTENCES = [
    "A man in a blue shirt is standing on a ladder.", "Two dogs run.", "Ein Mann mit einem Hut spielt Gitarre!",
    "l'été, « la Révolution » ; 1 234 ans", "", "   ", "x", "Kids play in the water at the beach on a sunny day .",
    "A B C D E", "T T S R",
]  # fmt: skip
AWKWARD = [
    "\u3000", "\n", "word " * 40, "日本 😀👩‍👩‍👧!", "e\u0301 \u0301 ﬁ ½", "\x00a\x01 \x7f\x1b[0m", "\ufeffbom", "▁",
    "<s> </s> <pad>", "a\u00a0b\u2028c", "-LRB- \\/ ``",
]  # fmt: skip
INVALID = [
    b"a \xff b",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98",
    b"\xc0\x80 caf\xc3",
    b"\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"",
]
HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=32, num_heads=2, beam_size=4, extra_length=6, max_length=300)
PARSER = HPARAMS.replace(model="word_aligned_transformer", positions="learned")
DEEP = HPARAMS.replace(num_layers=3, num_decoder_layers=1, activation="swish")
OPTIONS = {
    "pieces": {"max_source_length": 30},
    "trees": {"max_source_length": 20, "alpha": 0.1, "extra_length": 25},
}


def translator_of(tokenizer, hparams, seed=1, count=1):
    """Return a translator with `count` models. Their random weights are large enough for peaked distributions."""
    rng, models = np.random.default_rng(seed), []
    for _ in range(count):
        model = kt.Transformer.from_hparams(hparams, vocab_size=tokenizer.vocab_size)
        for variable in model.trainable_variables:
            variable.assign(rng.normal(scale=0.4, size=variable.shape))
        models.append(model)
    return kt.Translator(models, tokenizer, hparams)


def made(kind):
    """Return a parser if `kind` is "trees", and otherwise an ensemble with a SentencePiece tokenizer."""
    if kind == "trees":
        symbols = {"(S", ")S", "(NP", ")NP", "NN", "VB", "XX"}
        return translator_of(TreeTokenizer.train(SENTENCES * 5, symbols, 200), PARSER)
    return translator_of(SentencePieceTokenizer.train(SENTENCES * 5, 100), DEEP, count=2)


class Exported(NamedTuple):
    """A translator, the search options of its export, and the signatures and folder of the export."""

    translator: object
    options: dict
    signatures: dict
    folder: Path


@pytest.fixture(scope="module", params=["pieces", "trees"])
def exported(request, tmp_path_factory):
    """Yield a translator and its SavedModel. All test processes share the files of the SavedModel."""
    translator, options = made(request.param), OPTIONS[request.param]

    def make(path):
        export_saved_model(translator, path / "model", kt.SearchOptions(nbest=2, **options), max_beam_size=4)

    folder = shared_folder(tmp_path_factory, f"exported_{request.param}", make) / "model"
    loaded = tf.saved_model.load(folder)
    yield Exported(translator, options, loaded.signatures, folder)
    del loaded  # free its memory


def same(answer, expected, tolerance=1e-4):
    """Assert that the output of a signature equals the expected hypotheses of each text."""
    answer = {name: value.numpy() for name, value in answer.items()}
    for row, hypotheses in enumerate(expected):
        count = len(hypotheses)
        if "nbest" in answer:
            texts = [text.decode() for text in answer["nbest"][row]]
            assert texts == [h.text for h in hypotheses] + [""] * (len(texts) - count), row
            assert answer["outputs"][row].decode() == texts[0]
        tokens = [tuple(int(i) for i in ids if i != PAD) for ids in answer["tokens"][row]]
        assert tokens == [h.tokens for h in hypotheses] + [()] * (len(tokens) - count), row
        scores = [max(h.score, -1e9) for h in hypotheses] + [-1e9] * (len(tokens) - count)
        np.testing.assert_allclose(answer["scores"][row], scores, atol=tolerance)


def test_saved_model_translates_texts_alike(exported):
    translator, options, signatures, folder = exported
    texts = SENTENCES + AWKWARD
    expected = translator.translate(texts, nbest=2, **options)
    same(signatures["serving_default"](inputs=tf.constant(texts)), expected)
    for text, hypotheses in list(zip(texts, expected))[:12]:
        same(signatures["serving_default"](inputs=tf.constant([text])), [hypotheses])
    many = [texts[i % 10] for i in range(64)]
    same(signatures["serving_default"](inputs=tf.constant(many)), [expected[i % 10] for i in range(64)])
    assert len({h.text for h in sum(expected, [])}) > 2  # the outputs depend on the inputs
    # Sentences that are too long for a parser get one flat tree instead of two hypotheses.
    assert {len(hypotheses) for hypotheses in expected} == {1, 2}


def test_saved_model_replaces_invalid_bytes(exported):
    translator, options, signatures, folder = exported
    expected = translator.translate([text.decode(errors="replace") for text in INVALID], nbest=2, **options)
    same(signatures["serving_default"](inputs=tf.constant(INVALID)), expected)


def test_saved_model_takes_options_per_text(exported):
    translator, options, signatures, folder = exported
    texts, beams, alphas, nbest = SENTENCES[:5], [4, 2, 2, 4, 2], [0.0, 0.6, 1.0, 2.0, 0.6], [3, 1, 2, 4, 1]
    answer = signatures["translate_with_options"](
        inputs=tf.constant(texts), beam_size=tf.constant(beams), alpha=tf.constant(alphas), nbest=tf.constant(nbest)
    )
    fixed = {name: value for name, value in options.items() if name != "alpha"}
    asked = zip(texts, beams, alphas, nbest)
    same(answer, [translator.translate([text], *numbers, **fixed)[0] for text, *numbers in asked])
    one = signatures["translate_with_options"](
        inputs=tf.constant(texts), beam_size=tf.constant([2]), alpha=tf.constant([0.3]), nbest=tf.constant([2])
    )
    same(one, translator.translate(texts, 2, 0.3, 2, **fixed))


@pytest.mark.parametrize("beam_size, alpha, nbest", [(5, 0.6, 1), (0, 0.6, 1), (2, 0.6, 3), (2, 0.6, 0), (2, -1.0, 1)])
def test_saved_model_rejects_invalid_options(exported, beam_size, alpha, nbest):
    arguments = {"beam_size": tf.constant([beam_size]), "alpha": tf.constant([alpha]), "nbest": tf.constant([nbest])}
    with pytest.raises(tf.errors.InvalidArgumentError, match="beam_size must be from 1 to 4"):
        exported.signatures["translate_with_options"](inputs=tf.constant(["a"]), **arguments)


def test_saved_model_translates_ids_alike(exported):
    translator, options, signatures, folder = exported
    texts = [text for text in SENTENCES if text.strip()]
    ids = [[*row, EOS][: len(row) + i % 2] for i, row in enumerate(translator.tokenizer.encode(texts))]
    ids = tf.ragged.constant(ids, dtype=tf.int32).to_tensor(PAD)
    same(signatures["translate_ids"](ids=ids), translator.translate(texts, nbest=2, **options))


def test_saved_model_scores_pairs_alike(exported):
    translator, options, signatures, folder = exported
    targets = [found.text for (found, *_) in translator.translate(SENTENCES)]
    answer = signatures["score_pairs"](inputs=tf.constant(SENTENCES), targets=tf.constant(targets))
    for row, expected in enumerate(translator.score(SENTENCES, targets, options.get("alpha"))):
        length = len(expected.tokens)
        assert tuple(answer["tokens"][row].numpy()[:length]) == expected.tokens
        np.testing.assert_allclose(answer["log_probabilities"][row], expected.log_probability, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(answer["scores"][row], expected.score, rtol=1e-4, atol=1e-4)
        log_p = answer["token_log_probabilities"][row].numpy()
        np.testing.assert_allclose(log_p[:length], expected.token_log_probabilities, rtol=1e-4, atol=1e-4)
        assert not log_p[length:].any()


def test_saved_model_accepts_ids_with_bos_eos_or_none(exported):
    translator, options, signatures, folder = exported
    ids = tf.constant([[BOS, *translator.tokenizer.encode(["x"])[0], EOS, PAD]])
    same(signatures["translate_ids"](ids=ids), translator.translate(["x"], nbest=2, **options))
    same(signatures["translate_ids"](ids=tf.zeros([2, 0], tf.int32)), translator.translate(["", ""], nbest=2))


@pytest.mark.parametrize(
    "signature, arguments, said",
    [
        ("score_pairs", {"inputs": ["a", "b"], "targets": [""]}, "the number of targets must equal"),
        ("score_pairs", {"inputs": ["a"], "targets": ["", ""]}, "the number of targets must equal"),
        ("translate_ids", {"ids": [[-1, 5]]}, "ids must be from 0 to"),
        ("translate_ids", {"ids": [[5, 1000]]}, "ids must be from 0 to"),
        ("translate_with_options", {"inputs": ["a"], "beam_size": [], "alpha": [0.6], "nbest": [1]}, "one number"),
        ("translate_with_options", {"inputs": ["a"], "beam_size": [1, 1], "alpha": [0.6], "nbest": [1]}, "one number"),
    ],
)
def test_saved_model_rejects_wrong_arguments(exported, signature, arguments, said):
    kinds = {"inputs": tf.string, "targets": tf.string, "alpha": tf.float32}
    arguments = {name: tf.constant(value, kinds.get(name, tf.int32)) for name, value in arguments.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        exported.signatures[signature](**arguments)


def test_saved_model_translates_empty_batch(exported):
    answer = exported.signatures["serving_default"](inputs=tf.constant([], tf.string))
    assert answer["outputs"].shape == (0,) and answer["nbest"].shape == (0, 2)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"nbest": 5, "beam_size": 4}, "beam_size=4 and nbest=5"),
        ({"beam_size": 0}, "beam_size=0"),
        ({"beam_size": 9}, "beam_size must be at most max_beam_size=8, got 9"),
        ({"min_length": 2}, "min_length must be 0 for a SavedModel"),
        ({"repetition_penalty": 2.0}, "repetition_penalty must be 1.0 for a SavedModel"),
        ({"alpha": float("nan")}, "alpha must be at least 0, got nan"),
        ({"extra_length": -1}, "extra_length must be at least 0, got -1"),
        ({"max_source_length": 1}, "max_source_length must be at least 2.*got 1"),
    ],
)
def test_export_saved_model_rejects_invalid_options(tmp_path, options, said):
    with pytest.raises(kt.UserError, match=said):
        translator = translator_of(SymbolTokenizer("AB"), HPARAMS)
        export_saved_model(translator, tmp_path / "new", kt.SearchOptions(**options), max_beam_size=8)
    assert not any(tmp_path.iterdir())


# The command


STRANGER = """
import json, sys
sys.modules["keras_transformer"] = None  # what is not there cannot be imported
import tensorflow as tf, tensorflow_text
for folder, texts in json.loads(sys.argv[1]):
    loaded = tf.saved_model.load(folder)
    outputs = loaded.signatures["serving_default"](tf.constant(texts))["outputs"]
    print(json.dumps([text.decode() for text in outputs.numpy()]))
"""


@pytest.mark.parametrize("exported", ["trees"], indirect=True)
def test_saved_model_loads_without_this_package(home, saved, exported, tmp_path):
    translator, options, signatures, folder = exported
    texts = ["a b c", "", "d d a"]
    arguments = json.dumps([(str(saved), texts), (str(folder), SENTENCES)])
    process = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, arguments], cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert process.returncode == 0, process.stderr
    found = list(map(json.loads, process.stdout.splitlines()[-2:]))
    with eager_functions():
        of_home = kt.Translator.load(home.run).translate(texts)
    expected = of_home, translator.translate(SENTENCES, **options)
    assert found == [[hypotheses[0].text for hypotheses in each] for each in expected]


def test_export_uses_precision(home, call, tmp_path, monkeypatch):
    exported = []
    monkeypatch.setattr(saved_model, "export_saved_model", lambda *given, **options: exported.append((given, options)))
    flags = f"--run={home.run}", "--format=saved_model", "--precision=bfloat16", f"--output_dir={tmp_path}/half"
    call("export", *flags).succeeded_with_warnings()
    (((translator, *_), options),) = exported
    assert translator.model.compute_dtype == options["description"]["precision"] == "bfloat16"


def test_export_json_describes_export(home, saved):
    said = json.loads((saved / "export.json").read_text())
    (model,) = said["models"]
    assert (model["run"], model["problem"], model["checkpoint"]) == ("reverse-toy", "reverse", "best")
    assert said["format"] == "saved_model" and model["steps"][0] in (3, 6) and said["tensorflow"] == tf.__version__
    assert (said["beam_size"], said["nbest"], said["max_beam_size"], said["precision"]) == (2, 2, 8, "float32")
    assert said["tokenizer_sha256"] == json.loads((home.run / "manifest.json").read_text())["tokenizer_sha256"]


def test_export_json_names_the_exported_step(copied, call, tmp_path):
    (copied / "checkpoints" / "step-000000006" / "weights.npz").write_bytes(b"damaged")
    call("export", f"--run={copied}", "--format=keras", "--checkpoint=last", f"--output_dir={tmp_path}/out")
    assert json.loads((tmp_path / "out" / "export.json").read_text())["steps"] == [3]
    assert describe(Run.open(copied), "last")["steps"] == [3]


def test_export_replaces_only_exports(home, call, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    export = ("export", f"--run={home.run}", "--format=keras", f"--output_dir={folder}")
    folder.mkdir()
    (folder / "mine").write_text("mine")
    call(*export).refused(f"must be a new directory or an export, got {folder}, which contains mine")
    call(*export, "--force").refused(f"got {folder}, which contains mine")
    (folder / "mine").unlink()
    call(*export).succeeded_with_warnings()
    call(*export).refused("Pass --force to replace it")
    (folder / "export.json").write_text("old")
    call(*export).refused("damaged")
    assert (folder / "export.json").read_text() == "old"
    call(*export, "--force").refused("damaged")
    (folder / "export.json").write_text('{"files": [{}]}')
    call(*export, "--force").refused("which contains")
    (folder / "export.json").unlink()
    call(*export, "--force").refused("must be a new directory or an export")
    for path in folder.iterdir():
        path.unlink()
    call(*export).succeeded_with_warnings()
    call(*export, "--force").succeeded_with_warnings()
    assert json.loads((folder / "export.json").read_text())["format"] == "keras"
    (folder / "mine").write_text("mine")
    call(*export, "--force").refused("which contains mine")
    with pytest.raises(kt.UserError, match="must be a new directory or an export"):
        export_saved_model(kt.Translator.load(home.run), tmp_path)
    monkeypatch.chdir(folder)
    call(*export[:-1], "--output_dir=.").refused("the working directory")


def test_keras_file_loads_in_safe_mode(home, call, tmp_path):
    import keras

    flags = f"--run={home.run}", "--format=keras", f"--output_dir={tmp_path}/out", "--checkpoint=3"
    call("export", *flags).succeeded_with_warnings()
    model = keras.saving.load_model(tmp_path / "out" / "model.keras", safe_mode=True)
    original = kt.Translator.load(home.run, "3").model
    inputs = np.array([[4, 5, 6, EOS]]), np.array([[2, 6, 5]])
    np.testing.assert_array_equal(model(inputs), original(inputs))
    assert (tmp_path / "out" / "symbols.txt").read_bytes() == (home.run / "symbols.txt").read_bytes()


def log_probability_without_pad_and_bos(translator, source, target):
    """Return the log-probability of a target if PAD and BOS have probability 0, as in an export for CTranslate2."""
    source, target = (np.array([[*translator.tokenizer.encode([text])[0], EOS]]) for text in (source, target))
    logits = np.array(translator.model((source, np.insert(target, 0, BOS, axis=1)[:, :-1])), "float64")[0]
    logits[:, [PAD, BOS]] = -np.inf
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_p[range(target.shape[1]), target[0]].sum()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_ctranslate2_scores_alike(home, call, tmp_path, quantization):
    ctranslate2 = pytest.importorskip("ctranslate2")
    flags = f"--run={home.run}", "--format=ctranslate2", f"--output_dir={tmp_path}/out"
    call("export", *flags, f"--quantization={quantization}").succeeded()
    engine = ctranslate2.Translator(str(tmp_path / "out"))
    sources, targets = ["a b c", "d"], ["c b", "d d a"]
    found = engine.score_batch([text.split() for text in sources], [text.split() for text in targets])
    translator = kt.Translator.load(home.run)
    expected = [log_probability_without_pad_and_bos(translator, *pair) for pair in zip(sources, targets)]
    tolerance = {"atol": 1e-3} if quantization == "float32" else {"rtol": 0.05}
    np.testing.assert_allclose([sum(result.log_probs) for result in found], expected, **tolerance)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["max_tokens"] == 1024


def test_ctranslate2_rejects_other_models(home, tmp_path):
    run = dataclasses.replace(Run.open(home.run))
    run.config["hparams"]["model"] = "word_aligned_transformer"
    with pytest.raises(kt.UserError, match="must have model=transformer or marian, got word_aligned_transformer"):
        export_ctranslate2(run, tmp_path / "out")


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--format=saved_modle"], "unknown format 'saved_modle': did you mean saved_model?"),
        (["--format=onnx"], "choose one of argos, ctranslate2, huggingface, keras, saved_model."),
        (["--format=ctranslate2", "--quantization=int3"], "unknown quantization 'int3'"),
        (["--format=saved_model", "--quantization=int8"], "--quantization requires --format=ctranslate2"),
        (["--format=ctranslate2", "--alpha=0"], "--alpha requires --format=saved_model"),
        (["--format=keras", "--nbest=2"], "--nbest requires --format=saved_model"),
        (["--format=saved_model", "--nbest=3", "--beam_size=2"], "beam_size=2 and nbest=3"),
        (["--format=keras", "--checkpoint=7"], "available steps: 3, 6"),
    ],
)
def test_export_rejects_wrong_flags(home, call, tmp_path, flags, said):
    call("export", f"--run={home.run}", f"--output_dir={tmp_path}/out", *flags).refused(said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["saved_model", "keras", "ctranslate2"])
def test_export_rejects_damaged_runs(home, call, tmp_path, format):
    import shutil

    if format == "ctranslate2":
        pytest.importorskip("ctranslate2")
    run = tmp_path / "run"
    flags = ("export", f"--run={run}", f"--format={format}", f"--output_dir={tmp_path}/out")
    call(*flags).refused(f"{run} is not a run directory")
    shutil.copytree(home.run, run)
    (run / "symbols.txt").write_text("x\ny\n")
    call(*flags).refused("is not the vocabulary that the model was trained with")
    (run / "symbols.txt").unlink()
    call(*flags).refused("contains no tokenizer")
    shutil.copy(home.run / "symbols.txt", run)
    weights = run / "checkpoints" / "step-000000006" / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:-100])
    call(*flags, "--checkpoint=6").refused("damaged")
    shutil.rmtree(run / "checkpoints")
    call(*flags).refused("train first")
    assert not (tmp_path / "out").exists()
