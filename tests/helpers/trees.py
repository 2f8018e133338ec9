"""Independent implementations of tree functions, for comparison with those of the package."""

import re

from keras_transformer.parsing.tree import Tree, escaped


def delinearize(symbols, words):
    """Return the `Tree` that the symbols describe.

    Raises:
        ValueError: The symbols do not form a tree over the words.
    """
    stack, rest = [("", [])], iter(words)
    for symbol in symbols:
        if symbol[0] == "(":
            if len(stack) == 1 and stack[0][1]:
                raise ValueError(f"{symbol} comes after the end")
            stack.append((symbol[1:], []))
        elif symbol[0] == ")":
            label, children = stack.pop()
            if not stack or label != symbol[1:]:
                raise ValueError(f"{symbol} closes {f'({label}' if stack else 'nothing'}")
            if not children:
                raise ValueError(f"({label} is empty")
            stack[-1][1].append(Tree(label, tuple(children)))
        else:
            word = next(rest, None)
            if word is None:
                raise ValueError(f"{symbol} has no word")
            if len(stack) == 1:
                raise ValueError(f"{symbol} stands outside of all brackets")
            stack[-1][1].append(Tree(symbol, (), escaped(word)))
    if len(stack) > 1 or not stack[0][1]:
        raise ValueError(f"({stack[-1][0]} is not closed" if len(stack) > 1 else "there is no symbol")
    if next(rest, None) is not None:
        raise ValueError("there are more words than tags")
    return stack[0][1][0]


def spans(tree):
    """Return (label, start, end) of each constituent in preorder. The indices of its words are `start` to `end` - 1."""
    found, open_brackets, words = [], [], 0
    for token in re.findall(r"\([^ ()]*|\)|[^ ()]+", str(tree)):
        if token == ")":
            open_brackets.pop()[2] = words
        elif token[0] == "(":
            open_brackets.append([token[1:], words, None])
            found.append(open_brackets[-1])
        else:
            open_brackets[-1][0] = None  # the bracket of a tag, which is not a constituent
            words += 1
    return [tuple(span) for span in found if span[0] is not None]
