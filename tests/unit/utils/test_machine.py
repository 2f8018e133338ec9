"""Description of the machine."""

import pytest

from keras_transformer.utils import machine


def test_machine_names_its_gpus(tmp_path, monkeypatch):
    for number in range(2):
        gpu = tmp_path / f"0000:0{number}:00.0"
        gpu.mkdir()
        (gpu / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 24\n")
    monkeypatch.setattr(machine, "NVIDIA_GPUS", tmp_path)
    assert machine.describe_machine().startswith("2 × NVIDIA H100 80GB HBM3, ")


def test_machine_without_gpus_begins_with_its_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "NVIDIA_GPUS", tmp_path / "missing")
    assert machine.describe_machine().split(" ")[0].isdigit()


@pytest.mark.parametrize("flags, expected", [(["fpu", "avx512_bf16"], True), (["fpu", "avx2"], False), ([], None)])
def test_bfloat16_is_unknown_without_processor_flags(monkeypatch, flags, expected):
    monkeypatch.setattr(machine, "_processor", lambda: ("name", flags))
    assert machine.cpu_has_bfloat16() is expected
