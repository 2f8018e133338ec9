"""What EVALB leaves out and what it takes for equal: its parameters, and the files that hold them."""

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
    """EVALB's parameters; the defaults are those of its file COLLINS.prm, by which parsers of English are compared.

    Attributes:
        delete_labels: Labels that do not count: the words under such a tag and the brackets with such a label.
        delete_labels_for_length: Tags whose words a sentence's length leaves out.
        equal_labels: Pairs of labels that are equal, in both directions; what equals them is not.
        equal_words: Pairs of words that are equal.
        labelled: Whether the labels of brackets have to match.
        cutoff_length: Length of the longest sentences in the second block of totals.
    """

    delete_labels: frozenset = frozenset(["TOP", "-NONE-", ",", ":", "``", "''", "."])
    delete_labels_for_length: frozenset = frozenset(["-NONE-"])
    equal_labels: frozenset = frozenset([("ADVP", "PRT")])
    equal_words: frozenset = frozenset()
    labelled: bool = True
    cutoff_length: int = 40

    def __post_init__(self):
        # Whatever collections were given: sets, and of the pairs' two orders none, so that equal ones compare equal.
        for name in _LISTS.values():
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        for name in _PAIRS.values():
            object.__setattr__(self, name, frozenset(map(frozenset, getattr(self, name))))

    def same_label(self, one, other):
        """Return whether two labels, or tags, are equal."""
        return one == other or frozenset((one, other)) in self.equal_labels

    def same_word(self, one, other):
        """Return whether two words are equal."""
        return one == other or frozenset((one, other)) in self.equal_words

    @functools.cached_property
    def brackets_left_out(self):
        """The labels of brackets that do not count: the deleted ones and those equal to one of them."""
        return self.delete_labels.union(*(pair for pair in self.equal_labels if pair & self.delete_labels))


def read_parameters(lines, name="the parameters"):
    """Return the `Parameters` that a file of EVALB's (`.prm`) holds: lines of a key and its value, and `#` comments.

    What the file does not name is empty; brackets are then labelled and the cut-off is 40, as in EVALB. DEBUG and
    MAX_ERROR have no effect: EVALB stops after so many errors, but a long run must not be cut short without a score.

    Args:
        lines: The lines of text.
        name: What an error calls the text: its file.

    Raises:
        UserError: A key is unknown, or a value is missing, too many or no number; or it is QUOTE_LABEL, by which EVALB
            repairs sentences of other lengths: that is not implemented, and the scores would differ. It says where.
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
            raise UserError(f"{place}: {key} has {len(values)} values, not {wanted}; write one setting a line")
        if key in _NUMBERS:
            found[_NUMBERS[key]] = _number(key, values[0], place)
        elif key in _LISTS:
            found[_LISTS[key]].add(values[0])
        elif key in _PAIRS:
            found[_PAIRS[key]].add(frozenset(values))
    return Parameters(**found)


def _check_key(key, place):
    """Raise a `UserError` unless a file may have the key."""
    if key == _REFUSED:
        raise UserError(f"{place}: {key} is not implemented, and scores without it would differ; remove the line")
    known = (*_LISTS, *_PAIRS, *_NUMBERS, *_WITHOUT_EFFECT)
    if key not in known:
        raise UserError(f"{place}: {unknown('key', key, known)}")


def _number(key, value, place):
    """The number of a value: a length, or for LABELED whether it is 1."""
    if not value.isdecimal() or (key == "LABELED" and value not in ("0", "1")):
        wanted = "0 or 1" if key == "LABELED" else "a whole number"
        raise UserError(f"{place}: {key} is {value!r}; give {wanted}")
    return value == "1" if key == "LABELED" else int(value)
