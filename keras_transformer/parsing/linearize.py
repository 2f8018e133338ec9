"""Trees as sequences of symbols and back, after Vinyals et al. 2015, "Grammar as a Foreign Language".

`(S (NP (PRP it)) (VP (VBZ works)))` is `(S (NP PRP )NP (VP VBZ )VP )S`: the words are left out, for they are known,
their parts of speech stay, and closing brackets have labels, too. With one tag for all words, XX, the model has to
find constituents only.
"""

from keras_transformer.parsing.tree import DEEPEST, Tree, escaped

ANY_TAG = "XX"


def linearize(tree, tags=True):
    """Return the symbols of a constituent.

    Args:
        tree: `Tree`.
        tags: Whether words have their own parts of speech, or all `XX`.
    """
    if tree.word is not None:
        return [tree.label if tags else ANY_TAG]
    inside = [symbol for child in tree.children for symbol in linearize(child, tags)]
    return [f"({tree.label}", *inside, f"){tree.label}"]


def is_bracket(symbol):
    """Whether a symbol is a bracket, not a tag: tags such as -LRB- hold none."""
    return symbol[0] in "()"


def delinearize(symbols, words):
    """Return the `Tree` of symbols over words, as text writes these.

    Raises:
        ValueError: The symbols are no tree of so many words; it says why.
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


def repaired(symbols, words):
    """Return the `Tree` of symbols over words whatever the symbols are; of a tree's symbols, that tree.

    A closing bracket closes the innermost open one of its label, and all inside of that one; where none is open, it is
    left out. Tags beyond the last word are left out. Words beyond the last tag get XX, inside of what is open at the
    end, and all is closed. Brackets deeper than `DEEPEST` and constituents without words are left out; where not one
    constituent holds all, a TOP does.
    """
    stack, rest = [("TOP", [])], iter(words)
    for symbol in symbols:
        if symbol[0] == "(":
            if len(stack) < DEEPEST - 1:  # with TOP and a tag it can be read again
                stack.append((symbol[1:], []))
        elif symbol[0] != ")":
            word = next(rest, None)
            if word is not None:
                stack[-1][1].append(Tree(symbol, (), escaped(word)))
        elif symbol[1:] in [label for label, _ in stack[1:]]:
            while _close(stack) != symbol[1:]:
                pass
    stack[-1][1].extend(Tree(ANY_TAG, (), escaped(word)) for word in rest)
    while len(stack) > 1:
        _close(stack)
    parts = stack[0][1]
    return parts[0] if len(parts) == 1 and parts[0].word is None else Tree("TOP", tuple(parts))


def _close(stack):
    """Closes the innermost constituent; returns its label."""
    label, children = stack.pop()
    if children:
        stack[-1][1].append(Tree(label, tuple(children)))
    return label
