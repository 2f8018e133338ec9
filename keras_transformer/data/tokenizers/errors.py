"""Errors about a vocabulary that cannot be learned."""

from keras_transformer.utils.errors import UserError

CHANGE = "change it with --set problem.vocab_size=N"


class VocabularyTooLarge(UserError):
    """Error for a `vocab_size` that exceeds `largest`, the maximum number of pieces for the training text."""

    def __init__(self, vocab_size, largest):
        super().__init__(
            f"the vocabulary must have at most {largest} pieces for this training text, got {vocab_size}; {CHANGE}"
        )
        self.largest = int(largest)


def too_small(vocab_size, smallest):
    """Return a `UserError` for a vocabulary that is too small to contain every character of the text."""
    return UserError(
        f"the vocabulary must have at least {smallest} pieces to contain every character of the training text, got "
        f"{vocab_size}; {CHANGE}"
    )


def nothing_to_learn():
    """Return a `UserError` for a training text without words."""
    return UserError("the training text contains only blank lines. Check the training files.")
