"""The messages of user errors."""

from collections.abc import Iterator

import pytest

from keras_transformer.utils.errors import UserError


def complaint(call, *arguments, **keywords):
    """Return the message of the `UserError` that a call, or the iteration over its result, raises."""
    with pytest.raises(UserError) as caught:
        result = call(*arguments, **keywords)
        if isinstance(result, Iterator):
            list(result)
    assert "\n" not in str(caught.value)
    return str(caught.value)
