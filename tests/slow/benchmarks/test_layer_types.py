"""benchmarks/layer_types.py: that it runs, that its slopes are slopes, and that its page is what its rows say."""

import argparse
import importlib.util
import json
import sys

import keras
import numpy as np
import pytest
from helpers.paths import ROOT

from keras_transformer.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
import layer_types  # noqa: E402

ROWS = ROOT / "docs" / "layer_types.jsonl"


def complaint(*arguments):
    with pytest.raises(UserError) as caught:
        layer_types.main(list(arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The rows of a quick run, and where they lie."""
    path = tmp_path_factory.mktemp("quick") / "rows.jsonl"
    layer_types.main(["--quick", f"--json={path}"])
    return [json.loads(line) for line in path.read_text().splitlines()], path


def test_a_quick_run_times_every_layer_at_every_size(quick, capsys):
    rows, path = quick
    assert len(rows) == 7 * 3 * 2  # layers, sizes, passes
    assert len({row["layer"] for row in rows}) == 7
    assert {(row["n"], row["d"], *row["sweeps"]) for row in rows} == {(32, 16, "n", "d"), (64, 16, "n"), (32, 32, "d")}
    for row in rows:
        assert 0 < row["seconds"] <= row["median_seconds"] < 10
        assert row["backend"] == keras.backend.backend() and row["repeats"] == 2 and row["command"][0] == "python"
    layer_types.main([f"--from={path}"])
    assert capsys.readouterr().out.count("whole layer, restricted") == 2


def test_operations_are_those_of_every_matrix_product(quick, monkeypatch):
    """Of the attentions; the products of Keras' own layers are not made with keras.ops.matmul."""
    flags = argparse.Namespace(window=6, kernel=3)
    matmul = keras.ops.matmul
    for kind in layer_types.kinds():
        if "O(n·d²)" in kind.operations or "k·n" in kind.operations:
            continue
        counted = []

        def count(a, b, counted=counted):
            product = matmul(a, b)
            counted.append(2 * int(np.prod(product.shape)) * a.shape[-1])
            return product

        layer = kind.make(16, flags)
        layer.build((1, 20, 16))
        monkeypatch.setattr(keras.ops, "matmul", count)
        layer(np.ones((1, 20, 16), "float32"))
        monkeypatch.setattr(keras.ops, "matmul", matmul)
        assert sum(counted) == kind.flops(20, 16, flags), kind.name


def test_a_slope_is_that_of_the_largest_sizes():
    rows = [
        {"layer": "x", "pass": "forward", "n": n, "d": 8, "sweeps": ["n"], "seconds": seconds, "fit": 3}
        for n, seconds in [(400, 160.0), (1, 5.0), (100, 10.0), (200, 40.0), (2, 5.0)]
    ]
    assert layer_types.exponent(rows, "x", "n", "forward") == pytest.approx(2)
    assert np.isnan(layer_types.exponent(rows[:1], "x", "n", "forward"))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--lengths=64"], "--lengths takes two different numbers or more"),
        (["--widths=64,64"], "--widths takes two different numbers or more"),
        (["--widths=64,12"], "take multiples of 8"),
        (["--lengths=64,x"], "takes a whole number from 1 on, not 'x'"),
        (["--repeats=0"], "takes a whole number from 1 on, not '0'"),
        (["--fit=1"], "--fit takes a whole number from 2 on"),
        (["--json=/nowhere/rows.jsonl"], "/nowhere/rows.jsonl cannot be written"),
        (["--from=/nowhere/rows.jsonl"], "--from=/nowhere/rows.jsonl cannot be read"),
        ([f"--from={__file__}"], "cannot be read"),
        (["--length", "5", "6"], "unrecognized arguments: 6"),
    ],
)
def test_wrong_flags_are_refused_in_a_sentence(arguments, said):
    assert said in complaint(*arguments)


def test_a_plot_needs_matplotlib(quick, monkeypatch, tmp_path):
    plot = tmp_path / "plot.png"
    if importlib.util.find_spec("matplotlib"):
        layer_types.main([f"--from={quick[1]}", f"--output={plot}"])
        assert plot.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(layer_types.importlib.util, "find_spec", lambda name: None)
    assert "pip install matplotlib" in complaint("--quick", f"--output={plot}")


def test_the_page_is_what_the_rows_say():
    rows, page = layer_types.read(ROWS), (ROOT / "docs" / "layer_types.md").read_text(encoding="utf-8")
    assert layer_types.tables(rows) in page
    assert " ".join(rows[0]["command"]) in page
    assert (ROOT / "docs" / "layer_types.png").stat().st_size < 150_000
