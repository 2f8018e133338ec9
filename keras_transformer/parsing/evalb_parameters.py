"""EVALB parameters and parameter files, which specify the labels to ignore and the labels to treat as equal."""

import dataclasses
import functools

from keras_transformer.utils.errors import UserError, unknown

_PAIRS = {"EQ_LABEL": "equal_labels", "EQ_WORD": "equal_words"}
_LISTS = {"DELETE_LABEL": "delete_labels", "DELETE_LABEL_FOR_LENGTH": "delete_labels_for_length"}
_NUMBERS = {"LABELED": "labelled", "CUTOFF_LEN": "cutoff_length"}
_WITHOUT_EFFECT = ("DEBUG", "MAX_ERROR")
_REFUSED = "QUOTE_LABEL"


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Parameters of EVALB. The defaults are those of its file COLLINS.prm, the standard for English.

    Attributes:
        delete_labels: Labels and tags to ignore. Brackets with these labels and words with these tags do not count.
        delete_labels_for_length: Tags of words that do not count towards the length of a sentence.
        equal_labels: Pairs of labels that count as equal. Equality is symmetric, but not transitive.
        equal_words: Pairs of words that count as equal.
        labelled: Whether matching brackets must have equal labels.
        cutoff_length: Maximum sentence length in the second block of the summary.
    """

    delete_labels: frozenset = frozenset(["TOP", "-NONE-", ",", ":", "``", "''", "."])
    delete_labels_for_length: frozenset = frozenset(["-NONE-"])
    equal_labels: frozenset = frozenset([("ADVP", "PRT")])
    equal_words: frozenset = frozenset()
    labelled: bool = True
    cutoff_length: int = 40

    def __post_init__(self):
        # Store unordered pairs, so that the order within a pair does not matter when parameters are compared.
        for name in _LISTS.values():
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        for name in _PAIRS.values():
            object.__setattr__(self, name, frozenset(map(frozenset, getattr(self, name))))

    def same_label(self, one, other):
        """Return whether two labels or tags count as equal."""
        return one == other or frozenset((one, other)) in self.equal_labels

    def same_word(self, one, other):
        """Return whether two words count as equal."""
        return one == other or frozenset((one, other)) in self.equal_words

    @functools.cached_property
    def brackets_left_out(self):
        """Labels of brackets to ignore: the deleted labels and all labels that count as equal to them."""
        return self.delete_labels.union(*(pair for pair in self.equal_labels if pair & self.delete_labels))


def read_parameters(lines, name="the parameters"):
    """Read an EVALB parameter file (`.prm`), which has one setting per line and `#` comments.

    As in EVALB, missing keys default to empty lists, LABELED 1 and CUTOFF_LEN 40. The function ignores DEBUG, and also
    MAX_ERROR, the number of errors after which EVALB stops without a score.

    Args:
        lines: Lines of the file.
        name: Name of the file for error messages.

    Returns:
        `Parameters`.

    Raises:
        UserError: A key is unknown, a value is missing or invalid, a line has too many values, or the file sets
            QUOTE_LABEL, which is not implemented. EVALB uses this key to repair sentences whose gold and test trees
            have different numbers of words.
    """
    found = {field: set() for field in (*_LISTS.values(), *_PAIRS.values())}
    for number, line in enumerate(lines, start=1):
        if line.startswith("#") or not line.strip():
            continue
        key, *values = line.split()
        place = f"{name}:{number}"
        _check_key(key, place)
        wanted = 2 if key in _PAIRS else 1
        if len(values) != wanted:
            raise UserError(
                f"{place}: {key} must have {wanted} value{'s' * (wanted > 1)}, got {len(values)}. Write one setting "
                "per line."
            )
        if key in _NUMBERS:
            found[_NUMBERS[key]] = _number(key, values[0], place)
        elif key in _LISTS:
            found[_LISTS[key]].add(values[0])
        elif key in _PAIRS:
            found[_PAIRS[key]].add(frozenset(values))
    return Parameters(**found)


def _check_key(key, place):
    """Raise a `UserError` if the key is not allowed in a parameter file."""
    if key == _REFUSED:
        raise UserError(f"{place}: {key} is not implemented. Remove the line. Scores then differ from those of EVALB.")
    known = (*_LISTS, *_PAIRS, *_NUMBERS, *_WITHOUT_EFFECT)
    if key not in known:
        raise UserError(f"{place}: {unknown('key', key, known)}")


def _number(key, value, place):
    """Return the value of CUTOFF_LEN as an int, or that of LABELED as a bool."""
    if not value.isdecimal() or len(value) > 9 or (key == "LABELED" and value not in ("0", "1")):
        wanted = "0 or 1" if key == "LABELED" else "a non-negative integer with at most 9 digits"
        raise UserError(f"{place}: {key} must be {wanted}, got {value!r}")
    return value == "1" if key == "LABELED" else int(value)
