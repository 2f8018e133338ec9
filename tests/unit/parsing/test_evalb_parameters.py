"""Tests of `read_parameters`, which reads EVALB's parameter files."""

import pytest

from keras_transformer.parsing.evalb_parameters import Parameters, read_parameters
from keras_transformer.parsing.parseval import parseval
from keras_transformer.utils.errors import UserError

NONE = Parameters(delete_labels=(), delete_labels_for_length=(), equal_labels=())


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_default_parameters_are_collins(test_data):
    path = test_data / "evalb" / "COLLINS.prm"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    assert read_parameters(read(path), path.name) == Parameters()
    assert read_parameters(["EQ_LABEL PRT ADVP"]) != Parameters()


def test_parameter_file_is_read():
    lines = ["# by hand", "", "DEBUG 1", "MAX_ERROR 3", "LABELED 0  ", "CUTOFF_LEN 7", "DELETE_LABEL\tROOT\r"]
    lines += ["EQ_WORD a b", "EQ_LABEL X Y", "DELETE_LABEL #", "DELETE_LABEL_FOR_LENGTH E"]
    expected = Parameters({"ROOT", "#"}, {"E"}, {("Y", "X")}, {("b", "a")}, False, 7)
    assert read_parameters(lines) == expected
    assert read_parameters([]) == NONE != expected


def test_max_error_is_ignored():
    result = parseval(["(N a)"] * 20, ["(N b)"] * 20, read_parameters(["MAX_ERROR 3"]))
    assert result.errors == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DELETE_LABLE TOP", "unknown key 'DELETE_LABLE': did you mean DELETE_LABEL"),
        ("DELETE_LABEL", "DELETE_LABEL must have 1 value, got 0"),
        ("DEBUG", "DEBUG must have 1 value, got 0"),
        ("DELETE_LABEL TOP S", "DELETE_LABEL must have 1 value, got 2"),
        ("EQ_LABEL ADVP", "EQ_LABEL must have 2 values, got 1"),
        ("CUTOFF_LEN forty", "CUTOFF_LEN must be a non-negative integer with at most 9 digits, got 'forty'"),
        (f"CUTOFF_LEN {'9' * 5000}", "CUTOFF_LEN must be a non-negative integer with at most 9 digits"),
        ("LABELED 01", "LABELED must be 0 or 1, got '01'"),
        ("QUOTE_LABEL POS", "QUOTE_LABEL is not implemented. Remove the line"),
    ],
)
def test_faulty_parameter_file_is_rejected(line, message):
    with pytest.raises(UserError) as error:
        read_parameters(["# rules", line], "own.prm")
    assert str(error.value).startswith(f"own.prm:2: {message}")
