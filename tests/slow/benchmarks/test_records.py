"""Records of benchmarks/decode.py and benchmarks/train_step.py: medians, and ratios to the other engines."""

import json
import sys

import keras
import numpy as np
import pytest
from helpers.paths import ROOT
from keras import ops

import keras_transformer as kt
from keras_transformer.layers.position import SinusoidalPositions
from keras_transformer.training.schedule import make_schedule
from keras_transformer.utils.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
import decode  # noqa: E402
import peers  # noqa: E402
import train_step  # noqa: E402
from engines import arrays  # noqa: E402

DECODE_MODE = decode.MODES[keras.backend.backend()][0]
TRAIN_MODE = train_step.OUR_MODES[keras.backend.backend()]["float32"][0]


class FakeDecoder:
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


def test_decode_records_hold_medians_and_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "Process", FakeDecoder)
    monkeypatch.setattr(decode, "SIZES", {"tiny": ("tiny", 50)})
    path = tmp_path / "rows.jsonl"
    path.write_text('{"benchmark": "another"}\n')
    decode.main(
        [
            "--engines=keras_transformer,ctranslate2",
            "--precisions=float32,int8",
            "--repeats=3",
            f"--json={path}",
            f"--modes={DECODE_MODE}",
        ]
    )
    _, ours, float32, int8 = [json.loads(line) for line in path.read_text().splitlines()]
    assert (ours["engine"], ours["precision"], ours["workload"], ours["size"]) == (
        "keras_transformer", "float32", "forced", "tiny",
    )  # fmt: skip
    assert ours["output_tokens_per_second"] == 64 * 26 / 2 and ours["output_tokens"] == 64 * 26
    assert ours["ratios"] == {"ctranslate2": 0.5, "opennmt_tf": None}  # the median of 1/2, 2/2 and 2/8
    assert float32["ratios"]["ctranslate2"] == 1 and int8["ratios"]["ctranslate2"] == 2
    assert ours["mode"] == DECODE_MODE and float32["mode"] == "default" and float32["version"] == "4.8.0"
    assert ours["bleu"] is None and ours["repeats"] == 3 and ours["peak_memory_mb"] == 100
    assert {"benchmark", "threads", "command", "commit", "machine", "date"} <= ours.keys()
    assert FakeDecoder.turns[:6] == FakeDecoder.turns[5::-1] and len(FakeDecoder.turns) == 4 * 3  # there and back
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split()[:5] == ["workload", "size", "engine", "mode", "precision"] and "832" in lines[1]
    assert len({len(line) for line in lines}) == 1


class FakeTrainer:
    """A process that needs so many seconds for each turn."""

    seconds = {
        ("keras_transformer", "float32", TRAIN_MODE): [1, 2, 4],
        ("pytorch", "float32", "eager"): [2, 2, 2, 2],
        ("pytorch", "float32", "compile"): [4],  # it leaves after the first turn
        ("matmul", "float32", ""): [1, 1, 1],
        ("keras_transformer", "bfloat16", TRAIN_MODE): [1, 1],
        ("pytorch", "bfloat16", "eager"): [1, 1, 1],
        ("pytorch", "bfloat16", "compile"): [3],
        ("matmul", "bfloat16", ""): [1, 1],
    }
    turns, closed = [], []

    def __init__(self, task, engine, precision, mode, job, environments, folder):
        assert task == "train"
        self.key = engine, precision, mode
        self.left = list(self.seconds[self.key])

    def repeat(self):
        self.turns.append(self.key)
        facts = {"flops": 6e9} if self.key[0] == "matmul" else {"loss": 5.0, "first_loss": 6.0}
        return {"seconds": self.left.pop(0), **facts, "seconds_to_first_step": 9.0, "peak_memory_mb": 100.0}

    def close(self):
        assert self.key in self.turns
        self.closed.append(self.key)


def test_train_step_records_hold_medians_and_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "Process", FakeTrainer)
    monkeypatch.setattr(train_step, "SIZES", {"tiny": train_step.Size("tiny", 60, 5, 40, 3)})
    monkeypatch.setitem(train_step.OUR_MODES, keras.backend.backend(), {"float32": (TRAIN_MODE,)})
    path = tmp_path / "rows.json"
    flags = ["--engines=keras_transformer,pytorch", "--sizes=tiny", "--precisions=float32", "--repeats=3"]
    train_step.main([*flags, f"--json={path}"])
    ours, eager, compiled, product = json.loads(path.read_text())
    assert (ours["engine"], ours["size"], ours["workload"], ours["mode"]) == (
        "keras_transformer", "tiny", "fixed", TRAIN_MODE,
    )  # fmt: skip
    assert ours["target_tokens_per_second"] == 3 * 40 / 2 and ours["milliseconds_per_step"] == pytest.approx(2000 / 3)
    assert ours["ratios"] == {"opennmt_tf": None, "pytorch": 1.0, "keras_hub": None}  # of 2/1, 2/2 and 2/4
    assert compiled["ratios"]["pytorch"] is None and compiled["target_tokens_per_second"] == 3 * 40 / 4
    assert (compiled["repeats"], eager["repeats"], eager["version"]) == (1, 3, "2.13.0")
    assert product["engine"] == "matmul" and product["flops_per_second"] == 6e9
    model = kt.Transformer.from_hparams(kt.hparams("tiny"), vocab_size=60)
    assert ours["flops_per_second"] == pytest.approx(3 * model.update_flops(8, 5, 5) / 2)
    assert ours["over_product"] == pytest.approx(ours["flops_per_second"] / 6e9)
    wanted = {"precision", "peak_memory_mb", "seconds_to_first_step", "command", "commit", "machine"}
    assert wanted <= ours.keys() and ours["first_loss"] == 6
    assert FakeTrainer.closed == [("pytorch", "float32", "compile"), *FakeTrainer.turns[4:1:-1]]
    assert FakeTrainer.turns[2:5] == FakeTrainer.turns[7:4:-1]  # there and back
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert "667" in lines[1].split()  # milliseconds
    assert lines[0].split()[:3] == ["size", "workload", "engine"] and len({len(line) for line in lines}) == 1
    train_step.main([*flags, f"--json={tmp_path / 'rows.jsonl'}"])
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4


def test_train_step_compares_big_with_the_published_speed():
    rows = [{"engine": "keras_transformer", "size": size, "device": device, "target_tokens_per_second": speed}
            for size, device, speed in (("big", "gpu", 164_118), ("big", "gpu", 9), ("base", "gpu", 1e9))]  # fmt: skip
    rows.append({"engine": "matmul", "size": "big", "device": "gpu"})
    assert train_step.anchored(rows) == ["big: 164,118 target tokens/s, 2.00 × one A100's 82,059 (NVIDIA's, published)"]
    assert train_step.anchored([{**row, "device": "cpu"} for row in rows]) == []


def test_train_step_gives_engines_the_same_inputs(tmp_path):
    hparams = kt.hparams("tiny")
    schedule = make_schedule(hparams)
    for step in (1, 50, hparams.warmup_steps, 10 * hparams.warmup_steps):
        expected = float(ops.convert_to_numpy(schedule(step - 1)))
        assert arrays.learning_rate(vars(hparams), step) == pytest.approx(expected, rel=1e-5)
    expected = SinusoidalPositions(16)(ops.arange(40))
    np.testing.assert_allclose(arrays.sinusoids(40, 16), ops.convert_to_numpy(expected), atol=1e-5)
    batches = [[np.full((2, length), number + length) for length in (3, 4, 4)] for number in range(3)]
    arrays.write_batches(tmp_path / "batches.npz", batches)
    for batch, expected in zip(arrays.read_batches(tmp_path / "batches.npz"), batches, strict=True):
        for one, other in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "program, arguments, message",
    [
        (decode, ["--engines=ctranslat2"], "unknown engine 'ctranslat2': did you mean ctranslate2"),
        (decode, ["--workloads=natural"], "needs a trained run: --run=DIR"),
        (decode, ["--json=/nowhere/rows.jsonl"], "its folder does not exist"),
        (train_step, ["--sizes=huge"], "unknown size 'huge'"),
        (train_step, ["--repeats=0"], "takes a whole number from 1 on, not '0'"),
        (train_step, ["--steps=4"], "unrecognized arguments: --steps=4; see --help"),
    ],
)
def test_benchmarks_reject_wrong_arguments_in_one_sentence(program, arguments, message):
    with pytest.raises(UserError) as caught:
        program.main(arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)
