"""benchmarks/train_step.py: what its records say, what engines are told, and that our process trains as `fit` does."""

import json
import sys

import keras
import numpy as np
import pytest
from helpers.paths import ROOT
from keras import ops

import keras_transformer as kt
from keras_transformer.errors import UserError
from keras_transformer.layers.position import SinusoidalPositions
from keras_transformer.training.schedule import make_schedule

sys.path.insert(0, str(ROOT / "benchmarks"))
import loss_curve  # noqa: E402
import peers  # noqa: E402
import train_profile  # noqa: E402
import train_step  # noqa: E402
from engines import arrays, workload  # noqa: E402

MODE = train_step.OUR_MODES[keras.backend.backend()]["float32"][0]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--engines=pytroch"], "unknown engine 'pytroch': did you mean pytorch"),
        (["--sizes=huge"], "unknown size 'huge'"),
        (["--precisions=int8"], "unknown precision 'int8'"),
        (["--workloads=fixt"], "did you mean fixed"),
        (["--workloads=multi30k"], "needs the corpus: --raw_dir=FOLDER"),
        (["--device=gpu"], "measures this project alone, on JAX"),
        (["--engines="], "no engine is named"),
        (["--precisions=bfloat16"], "other engines are the measure in float32: add it"),
        (["--peers_bfloat16", "--precisions=float32"], "--peers_bfloat16 needs bfloat16 in --precisions"),
        (["--check", "--engines=pytorch"], "add keras_transformer to --engines"),
        (["--repeats=0"], "takes a whole number from 1 on, not '0'"),
        (["--threads=100000"], "there are "),
        (["--json=/nowhere/rows.jsonl"], "its folder does not exist"),
        (["--steps=4"], "unrecognized arguments: --steps=4; see --help"),
    ],
)
def test_a_wrong_argument_is_told_in_one_sentence(arguments, said):
    with pytest.raises(UserError) as caught:
        train_step.main(arguments)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_other_engines_are_given_our_rates_positions_and_batches(tmp_path):
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


def test_a_batch_of_one_length_has_no_padding_and_those_of_wmt_little():
    fixed = workload.training_batches({"lengths": 5, "vocab_size": 60, "batch_tokens": 40, "batches": 9})
    (source, inputs), labels, _ = fixed[0]
    assert fixed.batches_per_epoch == 9 and source.shape == inputs.shape == labels.shape == (8, 5)
    assert min(source.min(), labels.min()) > 3 and max(source.max(), labels.max()) < 60
    wmt = workload.training_batches({"lengths": "wmt", "vocab_size": 60, "batch_tokens": 4000, "batches": 30})
    assert 25 <= wmt.batches_per_epoch <= 40
    assert abs(workload.wmt_lengths(10_000).mean() - workload.MEAN_LENGTH) < 2


class Fake:
    """A process that needs so many seconds for each turn."""

    seconds = {
        ("keras_transformer", "float32", MODE): [1, 2, 4],
        ("pytorch", "float32", "eager"): [2, 2, 2, 2],
        ("pytorch", "float32", "compile"): [4],  # it leaves after the first turn
        ("matmul", "float32", ""): [1, 1, 1],
        ("keras_transformer", "bfloat16", MODE): [1, 1],
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


def test_records_hold_medians_over_turns_and_ratios_to_the_fastest_mode_of_a_peer(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "Process", Fake)
    monkeypatch.setattr(train_step, "SIZES", {"tiny": train_step.Size("tiny", 60, 5, 40, 3)})
    monkeypatch.setitem(train_step.OUR_MODES, keras.backend.backend(), {"float32": (MODE,)})
    path = tmp_path / "rows.json"
    flags = ["--engines=keras_transformer,pytorch", "--sizes=tiny", "--precisions=float32", "--repeats=3"]
    train_step.main([*flags, f"--json={path}"])
    ours, eager, compiled, product = json.loads(path.read_text())
    assert (ours["engine"], ours["size"], ours["workload"], ours["mode"]) == (
        "keras_transformer", "tiny", "fixed", MODE,
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
    assert Fake.closed == [("pytorch", "float32", "compile"), *Fake.turns[4:1:-1]]
    assert Fake.turns[2:5] == Fake.turns[7:4:-1]  # there and back
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert "667" in lines[1].split()  # milliseconds
    assert lines[0].split()[:3] == ["size", "workload", "engine"] and len({len(line) for line in lines}) == 1
    train_step.main([*flags, f"--json={tmp_path / 'rows.jsonl'}"])
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4


def test_big_on_a_gpu_stands_beside_the_published_figure():
    rows = [{"engine": "keras_transformer", "size": size, "device": device, "target_tokens_per_second": speed}
            for size, device, speed in (("big", "gpu", 164_118), ("big", "gpu", 9), ("base", "gpu", 1e9))]  # fmt: skip
    rows.append({"engine": "matmul", "size": "big", "device": "gpu"})
    assert train_step.anchored(rows) == ["big: 164,118 target tokens/s, 2.00 × one A100's 82,059 (NVIDIA's, published)"]
    assert train_step.anchored([{**row, "device": "cpu"} for row in rows]) == []


def test_bfloat16_is_measured_beside_the_peers_in_float32_and_theirs_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "Process", Fake)
    monkeypatch.setattr(train_step, "SIZES", {"tiny": train_step.Size("tiny", 60, 5, 40, 3)})
    modes = {precision: (MODE,) for precision in train_step.PRECISIONS}
    monkeypatch.setitem(train_step.OUR_MODES, keras.backend.backend(), modes)

    def measured(*more):
        path = tmp_path / f"rows{len(more)}.json"
        flags = ["--engines=keras_transformer,pytorch", "--sizes=tiny", "--precisions=float32,bfloat16", "--repeats=2"]
        train_step.main([*flags, *more, f"--json={path}"])
        return {(row["engine"], row["mode"], row["precision"]): row for row in json.loads(path.read_text())}

    rows = measured()
    assert rows.keys() == {
        *(("keras_transformer", MODE, precision) for precision in modes),
        *(("pytorch", mode, "float32") for mode in ("eager", "compile")),
        *(("matmul", None, precision) for precision in modes),
    }
    assert rows["keras_transformer", MODE, "bfloat16"]["ratios"]["pytorch"] == 2
    more = measured("--peers_bfloat16")
    assert more.keys() - rows.keys() == {("pytorch", mode, "bfloat16") for mode in ("eager", "compile")}
    assert more["pytorch", "eager", "bfloat16"]["ratios"]["pytorch"] == 2  # over its own float32


def test_our_process_makes_the_updates_of_fit(tmp_path):
    flags = train_step.read_flags(["--threads=1", "--repeats=2"])
    work = train_step.workload(
        "wmt", train_step.CHECK, flags, tmp_path / "work", dropout=0.0, label_smoothing=0.0, num_layers=1
    )
    job = {**work.job, "warm_updates": 0, "updates": 2}
    process = peers.Process("train", train_step.OURS, "float32", MODE, job, "none", tmp_path / "process")
    try:
        answers = [process.repeat() for _ in range(2)]
    finally:
        process.close()
    from engines.layout import assign_model, read_model

    config, weights = read_model(work.job["model"])
    hparams = kt.HParams(**config["hparams"])
    model = kt.Transformer(config["vocab_size"], hparams)
    assign_model(model, weights)
    model.compile(**kt.compile_arguments(hparams, jit_compile=MODE != "graph"))
    batches, losses = workload.training_batches(work.job["corpus"]).replace(few_shapes=False), []
    for number in range(7):
        losses.append(float(model.train_on_batch(*batches[number])[0]))
    found = [answers[0]["first_loss"], answers[0]["loss"], answers[1]["loss"]]
    tokens = np.array(work.tokens[:7])
    expected = [losses[0]] + [np.average(losses[i : i + 2], weights=tokens[i : i + 2]) for i in (2, 5)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The update of the first step, the warm ones, and the first turn's two; then the second turn's own warm one.
    number = 1 + train_step.WARM_UPDATES + 2 + 1
    assert work.of_turn(1, "graph") == (work.tokens[number], work.flops[number])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="it profiles operations of TensorFlow")
def test_the_profile_finds_all_products_of_an_update(monkeypatch):
    small = train_step.Size("tiny", 60, 8, 64, 1)
    monkeypatch.setitem(train_profile.SIZES, "small", small)
    row = train_profile.record("small", "float32")
    model = kt.Transformer.from_hparams(kt.hparams("tiny"), vocab_size=small.vocab_size)
    found = sum(part["flops"] for part in row["parts"])
    rows = small.batch_tokens // small.length
    assert found == pytest.approx(model.update_flops(rows, small.length, small.length), rel=0.01)
    assert {"attention", "feed-forward", "loss"} == {part["part"] for part in row["parts"] if part["flops"]}
    assert "of the limit" in train_profile.table(row)


def test_curves_of_two_seeds_are_apart(tmp_path, capsys):
    def curve(name, **flags):
        arguments = {"problem": "reverse", "hparams": "toy", "data_dir": tmp_path, "updates": 2, **flags}
        loss_curve.main([f"--{flag}={value}" for flag, value in arguments.items()] + [f"--save={tmp_path}/{name}"])
        return loss_curve.curve(tmp_path / name)

    first, other = curve("first"), curve("other", seed=2)
    assert loss_curve.compared(first, first)["greatest_difference"] == 0
    apart = loss_curve.compared(first, other)
    assert apart["greatest_difference"] >= apart["mean_difference"] > 1e-2
    loss_curve.main([f"--compare={tmp_path}/first,{tmp_path}/other", f"--json={tmp_path}/rows.jsonl"])
    assert json.loads((tmp_path / "rows.jsonl").read_text())["seeds"] == [1, 2]
    (tmp_path / "torn").write_text('{"losses": [1')
    with pytest.raises(UserError, match="torn is not what --save writes"):
        loss_curve.main([f"--compare={tmp_path}/first,{tmp_path}/torn"])
    with pytest.raises(UserError, match="2 and 1 updates"):
        loss_curve.compared(first, {**other, "losses": other["losses"][:1]})
