"""benchmarks/decode.py: what its records say, what the engines are told, and that a converted model is the same."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers.paths import ROOT

import keras_transformer as kt
from keras_transformer.data.tokenizer import EOS, SPECIAL
from keras_transformer.errors import UserError
from keras_transformer.layers.position import SinusoidalPositions
from keras_transformer.layers.residual import EPSILON
from keras_transformer.serving import ctranslate2 as serving

sys.path.insert(0, str(ROOT / "benchmarks"))
import decode  # noqa: E402
import peers  # noqa: E402
from engines import layout, protocol  # noqa: E402
from engines.agreement import compare, peaked  # noqa: E402

VOCAB = 60
MODE = decode.MODES[keras.backend.backend()][0]
SMALL = dict(num_layers=2, d_model=32, d_ff=64, num_heads=4)


def small_workload(folder, **hparams):
    """A model whose outputs are sure of themselves, in its file, and sentences for it: (model, workload)."""
    model = peaked(kt.Transformer(VOCAB, kt.HParams(**SMALL, **hparams)))
    layout.write_model(folder / "model.npz", model)
    lengths = np.random.default_rng(1).integers(3, 13, 24)
    return model, decode.symbols("check", "small", folder, VOCAB, lengths, alpha=0.0, extra_length=30)


def translator_of(model, workload):
    return kt.Translator(model, workload.tokenizer, model.hparams)


def answer_of(translator, workload):
    """What a `peers.Process` would answer that is this very translator."""
    best = [one[0] for one in translator.translate(workload.texts, beam_size=4, alpha=0.0, extra_length=30)]
    return {"outputs": [[i for i in one.tokens if i != EOS] for one in best], "scores": [one.score for one in best]}


def complaint(*arguments):
    with pytest.raises(UserError) as caught:
        decode.main(list(arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--engines=ctranslat2"], "unknown engine 'ctranslat2': did you mean ctranslate2"),
        (["--sizes=huge"], "unknown size 'huge'"),
        (["--workloads=forced,naturall"], "did you mean natural"),
        (["--precisions=int4"], "unknown precision 'int4': did you mean int8"),
        (["--engines=opennmt_tf", "--precisions=int8"], "no engine is measured in these"),
        (["--engines="], "no engine is named"),
        (["--workloads=natural"], "needs a trained run: --run=DIR"),
        (["--repeats=0"], "takes a whole number from 1 on, not '0'"),
        (["--threads=100000"], "there are "),
        (["--json=/nowhere/rows.jsonl"], "its folder does not exist"),
        (["--beam=4"], "unrecognized arguments: --beam=4; see --help"),
    ],
)
def test_a_wrong_argument_is_told_in_one_sentence(arguments, said):
    assert said in complaint(*arguments)


def test_help_and_exit_status():
    script = ROOT / "benchmarks" / "decode.py"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    helped = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, env=environment)
    assert helped.returncode == 0 and "forced" in helped.stdout and "--environments" in helped.stdout
    wrong = subprocess.run([sys.executable, script, "--sizes=x"], capture_output=True, text=True, env=environment)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: unknown size 'x'") and not wrong.stdout


def test_a_model_comes_back_from_the_file_that_all_engines_read(tmp_path):
    model = peaked(kt.Transformer(VOCAB, kt.HParams(**SMALL)))
    layout.write_model(tmp_path / "model.npz", model)
    config, weights = layout.read_model(tmp_path / "model.npz")
    assert config["vocab_size"] == VOCAB and kt.HParams(**config["hparams"]) == model.hparams
    assert set(weights) > {"embedding/table", "decoder/layer_2/cross_attention_residual/normalization/gamma"}
    other = kt.Transformer(VOCAB, model.hparams.replace(seed=2))
    layout.assign_model(other, weights)
    pairs = [(a, b) for a, b in zip(model.variables, other.variables) if not a.path.endswith(layout.SEEDS)]
    assert len(pairs) == len(weights.files) - 1
    for one, two in pairs:
        np.testing.assert_array_equal(one, two)


def test_batches_hold_each_sentence_once_longest_first():
    sources = [[0] * length for length in (3, 9, 1, 9, 5)]
    assert list(protocol.batches(sources, rows=2)) == [[1, 3], [4, 0], [2]]


class Fake:
    """A process that needs so many seconds for each round, the first of which is not counted."""

    turns = []
    seconds = {
        ("keras_transformer", "float32"): [9, 2, 2, 8],
        ("ctranslate2", "float32"): [9, 1, 2, 2],
        ("ctranslate2", "int8"): [9, 1, 1, 1],
    }

    def __init__(self, task, engine, precision, mode, job, environments, folder):
        self.engine, self.precision, self.mode, self.job, self.closed = engine, precision, mode, job, False
        self.left = list(self.seconds[engine, precision])

    def repeat(self):
        self.turns.append(self.engine + self.precision)
        length = self.job["min_length"] if self.engine == "keras_transformer" else self.job["forced_length"]
        outputs = [[7] * length] * len(self.job["sources"])
        return {"seconds": self.left.pop(0), "outputs": outputs, "scores": [0.0] * 64, "peak_memory_mb": 100.0}

    def close(self):
        self.closed = True


def test_records_hold_medians_over_rounds_in_which_all_take_turns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "Process", Fake)
    monkeypatch.setattr(decode, "SIZES", {"tiny": ("tiny", 50)})
    path = tmp_path / "rows.jsonl"
    path.write_text('{"benchmark": "another"}\n')
    decode.main(
        [
            "--engines=keras_transformer,ctranslate2",
            "--precisions=float32,int8",
            "--repeats=3",
            f"--json={path}",
            f"--modes={MODE}",
        ]
    )
    _, ours, float32, int8 = [json.loads(line) for line in path.read_text().splitlines()]
    assert (ours["engine"], ours["precision"], ours["workload"], ours["size"]) == (
        "keras_transformer", "float32", "forced", "tiny",
    )  # fmt: skip
    assert ours["output_tokens_per_second"] == 64 * 26 / 2 and ours["output_tokens"] == 64 * 26
    assert ours["ratios"] == {"ctranslate2": 0.5, "opennmt_tf": None}  # the median of 1/2, 2/2 and 2/8
    assert float32["ratios"]["ctranslate2"] == 1 and int8["ratios"]["ctranslate2"] == 2
    assert ours["mode"] == MODE and float32["mode"] == "default" and float32["version"] == "4.8.0"
    assert ours["bleu"] is None and ours["repeats"] == 3 and ours["peak_memory_mb"] == 100
    assert {"benchmark", "threads", "command", "commit", "machine", "date"} <= ours.keys()
    assert Fake.turns[:6] == Fake.turns[5::-1] and len(Fake.turns) == 4 * 3  # there and back
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split()[:5] == ["workload", "size", "engine", "mode", "precision"] and "832" in lines[1]
    assert len({len(line) for line in lines}) == 1


def test_an_engine_whose_outputs_have_other_lengths_is_no_record(monkeypatch):
    monkeypatch.setattr(peers, "Process", Fake)
    monkeypatch.setattr(decode, "SIZES", {"tiny": ("tiny", 50)})
    monkeypatch.setattr(Fake, "repeat", lambda self: {"outputs": [[7] * 25] * 64, "seconds": 1, "peak_memory_mb": 1})
    with pytest.raises(RuntimeError, match="other lengths than 26"):
        decode.main(["--engines=ctranslate2", "--precisions=int8", "--repeats=1"])


def test_a_process_of_this_project_translates_as_the_translator_does(tmp_path):
    model, workload = small_workload(tmp_path)
    expected = answer_of(translator_of(model, workload), workload)
    process = peers.Process(
        "decode", "keras_transformer", "float32", MODE, workload.job(threads=1), "none", tmp_path / "process"
    )
    try:
        answer = process.repeat()
    finally:
        process.close()
    assert answer["outputs"] == expected["outputs"] and answer["seconds"] > 0 and answer["peak_memory_mb"] > 100
    np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-4)


def test_an_engine_that_fails_is_told_by_its_last_line(tmp_path, capsys):
    _, workload = small_workload(tmp_path)
    with pytest.raises(UserError, match="^keras_transformer failed: .*none.npz"):
        job = {**workload.job(threads=1), "model": "none.npz"}
        peers.Process("decode", "keras_transformer", "float32", MODE, job, "none", tmp_path / "process")
    assert "Traceback" in capsys.readouterr().err


def test_an_environment_is_made_once_of_pinned_versions(tmp_path, monkeypatch):
    commands = []

    def run(command, engine, env=None):
        commands.append(list(map(str, command)))
        Path(commands[0][-1]).mkdir(exist_ok=True)

    monkeypatch.setattr(peers, "_run", run)
    for _ in range(2):
        python = peers.python_of("ctranslate2", tmp_path, report=lambda line: None)
    assert len(commands) == 2 and "venv" in commands[0] and commands[1][0] == python
    assert "ctranslate2==4.8.0" in commands[1]
    assert peers.python_of("keras_transformer", tmp_path) == sys.executable
    for engine, requirements in peers.REQUIREMENTS.items():
        assert all(requirement.count("==") == 1 for requirement in requirements.split())
        assert any(requirement.endswith("==" + peers.VERSIONS[engine]) for requirement in requirements.split())


def test_engines_agree_only_where_scores_and_tokens_do(tmp_path, capsys):
    model, workload = small_workload(tmp_path)
    translator = translator_of(model, workload)
    ours = answer_of(translator, workload)
    assert compare("ctranslate2", 4, translator, workload, ours, ours)
    scores = [score + (0.01 if i == 0 else 0) for i, score in enumerate(ours["scores"])]
    assert not compare("ctranslate2", 4, translator, workload, ours, {**ours, "scores": scores})
    others = [list(reversed(ids)) + [7] for ids in ours["outputs"]]
    forced = [one.score for one in translator.score(workload.texts, others, alpha=0.0)]
    assert not compare("ctranslate2", 4, translator, workload, ours, {"outputs": others, "scores": forced})
    assert capsys.readouterr().out.count("ctranslate2, beam 4") == 3


def test_the_conversion_needs_neither_keras_nor_a_backend():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['keras', 'tensorflow', 'jax'])); "
        "import keras_transformer.serving.ctranslate2, keras_transformer.hyperparameters as h; h.HParams()"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_conversion_knows_what_it_cannot_import():
    assert serving.LAYER_NORM_EPSILON == EPSILON
    layer = SinusoidalPositions(32)
    layer.build()
    np.testing.assert_allclose(serving.sinusoids(50, 32), np.asarray(layer(np.arange(50))), atol=1e-5)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"encoder_attention": "restricted"}, "encoder_attention=restricted"),
        ({"d_k": 4}, "d_k=4, only with 8"),
        ({"d_v": 16}, "d_v=16"),
        ({"word_heads": 1}, "word_heads=1, only with 0"),
    ],
)
def test_what_ctranslate2_cannot_compute_is_said(tmp_path, change, said):
    with pytest.raises(UserError, match=said):
        serving.convert({}, kt.HParams(**SMALL, **change), ["a", "b", "c", "d"], tmp_path / "new")
    with pytest.raises(UserError, match="two of this vocabulary are equal"):
        serving.convert({}, kt.HParams(**SMALL), ["a", "b", "c", "a"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


HAVE_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None
needs_ctranslate2 = pytest.mark.skipif(not HAVE_CTRANSLATE2, reason="ctranslate2 is not installed here")


def converted(model, workload, folder):
    """The model in CTranslate2, loaded."""
    import ctranslate2

    tokens = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), VOCAB))]
    serving.convert(layout.read_model(workload.model)[1], model.hparams, tokens, folder)
    return ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)


@needs_ctranslate2
@pytest.mark.parametrize("change", [{}, {"norm": "pre"}, {"positions": "learned", "max_length": 20}], ids=str)
def test_a_converted_model_gives_every_target_the_same_probability(tmp_path, change):
    model, workload = small_workload(tmp_path, **change)
    engine = converted(model, workload, tmp_path / "converted")
    rng = np.random.default_rng(2)
    targets = [" ".join(f"w{i}" for i in rng.integers(len(SPECIAL), VOCAB, n)) for n in range(1, 25)]
    results = engine.score_batch([text.split() for text in workload.texts], [target.split() for target in targets])
    scores = [one.log_probability for one in translator_of(model, workload).score(workload.texts, targets)]
    np.testing.assert_allclose([sum(result.log_probs) for result in results], scores, rtol=1e-4)


@needs_ctranslate2
def test_a_converted_model_finds_the_same_translations(tmp_path):
    model, workload = small_workload(tmp_path)
    engine = converted(model, workload, tmp_path / "converted")
    expected = answer_of(translator_of(model, workload), workload)
    arguments = {"beam_size": 4, "max_decoding_length": 35, "min_decoding_length": 0, "return_scores": True}
    same = 0
    for alpha in (0.0, 0.6):
        results = engine.translate_batch([text.split() for text in workload.texts], length_penalty=alpha, **arguments)
        for result, ids, score in zip(results, expected["outputs"], expected["scores"]):
            (tokens,) = result.hypotheses
            # One at the limit has no EOS there.
            if len(tokens) < 30 and tokens == workload.tokenizer.pieces(ids):
                assert result.scores[0] * (len(tokens) + 1) ** alpha == pytest.approx(score, abs=1e-3)
                same += 1
    assert same > 10


@needs_ctranslate2
def test_weights_that_are_missing_are_named(tmp_path):
    with pytest.raises(UserError, match="no weights embedding/table"):
        serving.convert({}, kt.HParams(**SMALL), list("abcd"), tmp_path / "new")
