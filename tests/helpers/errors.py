"""Function that returns the message of a user error."""

from collections.abc import Iterator

import pytest

from keras_transformer.utils.errors import UserError


def complaint(call, *arguments, **keywords):
    """Return the message of the `UserError` that a call raises. If the call returns an iterator, exhaust it."""
    with pytest.raises(UserError) as caught:
        result = call(*arguments, **keywords)
        if isinstance(result, Iterator):
            list(result)
    assert "\n" not in str(caught.value)
    return str(caught.value)
