"""Tests of bracketing scores with EVALB's sample files, an independent implementation, and malformed input."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.parsing.evalb_parameters import Parameters, read_parameters
from keras_transformer.parsing.parseval import parseval
from keras_transformer.parsing.sentence_score import score_sentence
from keras_transformer.utils.errors import UserError

GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ eats) (NP (NN fish))) (. .))"
NONE = Parameters(delete_labels=(), delete_labels_for_length=(), equal_labels=())


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def counts(gold, test, parameters=None):
    """Return the numbers of (matched, gold, test, crossing) brackets of a valid sentence."""
    score = score_sentence(gold, test, parameters or Parameters())
    assert (score.status, score.message) == (0, "")
    return score.matched, score.gold, score.test, score.crossing


@pytest.fixture
def sample(test_data):
    """Return the `Parseval` of EVALB's sample files, and the lines that EVALB prints for them."""
    folder = test_data / "evalb"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    parameters = read_parameters(read(folder / "sample.prm"), "sample.prm")
    return parseval(read(folder / "sample.gld"), read(folder / "sample.tst"), parameters), read(folder / "sample.rsl")


def test_sample_table_matches_evalb(sample):
    result, expected = sample
    assert list(map(str, result.sentences)) == expected[3:27] and len(result.sentences) == 24
    lines = result.table().splitlines()
    # The version of EVALB that wrote the sample's output did not print the F-measure.
    assert [line for line in lines if "FMeasure" in line] == [
        "Bracketing FMeasure       =  89.12",
        "Bracketing FMeasure       =  83.20",
    ]
    lines = [line for line in lines if "FMeasure" not in line]
    # The total row of the sample's output has the number of sentences without crossings, 16. Later versions of EVALB
    # print the number of crossings there.
    assert expected[28].split()[5] == "16" and lines[28].split()[5] == "1"
    expected[28] = expected[28].replace("    16", "     1")
    assert lines == expected


def test_sample_figures(sample):
    result, _ = sample
    assert (result.valid, result.errors, result.skipped) == (17, 5, 2)
    assert (result.total("matched"), result.total("gold"), result.total("test")) == (86, 98, 95)
    assert result.f1 == pytest.approx(2 * 86 / (98 + 95) * 100)
    short = result.up_to(40)
    assert (len(short.sentences), short.valid, result.up_to(43).valid, result.up_to(44).valid) == (23, 16, 16, 17)
    assert (short.recall, short.precision) == (pytest.approx(100 * 52 / 64), pytest.approx(100 * 52 / 61))
    messages = {sentence.number: sentence.message for sentence in result.sentences if sentence.status == 1}
    assert messages == {
        12: "Words unmatch (is|was)",
        13: "Length unmatch (4|5)",
        16: "Length unmatch (4|5)",
        17: "Length unmatch (4|6)",
        20: "Words unmatch (this|That)",
    }


# Comparison with multisets of (label, set of words)


LABELS = ["S", "NP", "VP", "NP-SBJ", "NP=2", "VP-PRD-1", "TOP"]


@st.composite
def parses(draw, size, depth=0):
    """Draw a list of children that cover `size` words.

    A child is [label, *children] for a constituent, None for a word, or "" for a trace.
    """
    children = []
    while size:
        part = draw(st.integers(1, size))
        if depth < 4 and draw(st.booleans()):
            children.append([draw(st.sampled_from(LABELS)), *draw(parses(part, depth + 1))])
            size -= part
        else:
            children.append(None)
            size -= 1
        if draw(st.integers(0, 4)) == 0:
            children.append(draw(st.sampled_from(["", ["NP", ""]])))
    return children


def written(child, leaves):
    """Return a child in bracket notation. `leaves` yields the text of each word."""
    if child == "":
        return "(-NONE- *)"
    if child is None:
        return next(leaves)
    return f"({child[0]} {' '.join(written(part, leaves) for part in child[1:])})"


def sets_of_words(child, kept):
    """Return the set of words in a child, and a list with (label, set of words) of each bracket.

    `kept` yields the index of each word, or None if EVALB deletes the word.
    """
    if child == "":
        return frozenset(), []
    if child is None:
        return frozenset({next(kept)} - {None}), []
    parts = [sets_of_words(part, kept) for part in child[1:]]
    words = frozenset().union(*(part for part, _ in parts))
    label = child[0].partition("-")[0].partition("=")[0]
    own = [(label, words)] if words and label != "TOP" else []
    return words, own + [bracket for _, brackets in parts for bracket in brackets]


@given(st.data())
def test_brackets_match_like_oracle_multisets(data):
    size = data.draw(st.integers(1, 8))
    punctuation = data.draw(st.sets(st.integers(1, size - 1), max_size=2)) if size > 1 else set()
    sides = [["S", *data.draw(parses(size))] for _ in range(2)]
    texts, brackets = [], []
    for side in sides:
        texts.append(written(side, (f"(, x{i})" if i in punctuation else f"(N x{i})" for i in range(size))))
        brackets.append(sets_of_words(side, iter([None if i in punctuation else i for i in range(size)]))[1])
    gold, test = map(Counter, brackets)
    crossing = sum(any(a & b and a - b and b - a for _, a in brackets[0]) for _, b in brackets[1])
    expected = (gold & test).total(), gold.total(), test.total(), crossing
    assert counts(*texts) == expected
    bare = [Counter(words for _, words in side) for side in brackets]
    unlabelled = Parameters(labelled=False)
    assert counts(*texts, unlabelled) == ((bare[0] & bare[1]).total(), *expected[1:])
    score = score_sentence(*texts, Parameters())
    assert (score.words, score.length, score.correct_tags) == (size - len(punctuation), size, size - len(punctuation))


# Rules of EVALB


def test_unary_brackets_match_one_each():
    assert counts("(S (NP (NP (N a))))", "(S (NP (N a)))") == (2, 3, 2, 0)
    assert counts("(S (NP (N a)))", "(S (NP (NP (NP (N a)))))") == (2, 2, 4, 0)
    assert counts("(A (B (N a)))", "(B (A (N a)))") == (2, 2, 2, 0)


def test_crossing_bracket_counts_once():
    gold = "(S (A (B (N a) (N b))) (C (N c) (N d)))"
    assert counts(gold, "(S (N a) (X (Y (N b) (N c))) (N d))") == (1, 4, 3, 2)
    assert counts(gold, "(S (X (N a) (N b) (N c)) (N d))") == (1, 4, 2, 1)
    assert counts(gold, "(S (N a) (X (N b)) (C (N c) (N d)))") == (2, 4, 3, 0)


def test_equal_labels_are_symmetric_but_not_transitive():
    assert (
        counts("(S (ADVP (N a)))", "(S (PRT-1 (N a)))") == counts("(S (PRT (N a)))", "(S (ADVP (N a)))") == (2, 2, 2, 0)
    )
    chain = Parameters(equal_labels=[("A", "B"), ("C", "B")])
    assert counts("(A (N a))", "(C (N a))", chain) == (0, 1, 1, 0)
    assert counts("(A (N a))", "(B (N a))", chain) == counts("(B (N a))", "(C (N a))", chain) == (1, 1, 1, 0)
    # EVALB matches greedily: the first bracket takes the only possible match of the second.
    assert counts("(B (A (N a)))", "(A (C (N a)))", chain) == (1, 2, 2, 0)


def test_tags_are_compared_whole_and_by_equal_labels():
    tags = [
        score_sentence("(S (ADVP a))", f"(S ({tag} a))", Parameters()).correct_tags for tag in ("PRT", "ADVP-1", "X")
    ]
    assert tags == [1, 0, 0]


def test_label_equal_to_deleted_label_keeps_words():
    parameters = Parameters(delete_labels=["A"], equal_labels=[("A", "B")])
    assert counts("(S (B (N a)) (C (B b)))", "(S (N a) (C (B b)))", parameters) == (2, 2, 2, 0)
    assert score_sentence("(S (B b) (A a))", "(S (B b))", parameters).words == 1


def test_different_words_are_an_error_unless_equal():
    parameters = Parameters(equal_words=[("Dog", "dog")])
    assert score_sentence("(S (N dog))", "(S (N Dog))", Parameters()).message == "Words unmatch (dog|Dog)"
    assert counts("(S (N dog))", "(S (N Dog))", parameters) == counts("(S (N Dog))", "(S (N dog))", parameters)


def test_punctuation_is_ignored_unless_mistagged():
    without = "(S (NP (DT the) (NN dog)) (VP (VBZ eats) (NP (NN fish))))"
    assert counts(GOLD, without) == counts(GOLD, GOLD.replace(" (. .))", ") (: -)")) == (4, 4, 4, 0)
    assert counts(GOLD, "(S (PRN (, ,)) (NP (DT the) (NN dog)) (VP (VBZ eats) (, ,) (NP (NN fish) (. .))))") == (
        4,
        4,
        4,
        0,
    )
    assert score_sentence(GOLD, GOLD, NONE).words == 5
    score = score_sentence(GOLD, GOLD.replace("(. .)", "(NN .)"), Parameters(), 7)
    assert (score.status, score.message) == (1, "Length unmatch (4|5)")
    assert str(score) == "   7    5    1    0.00   0.00     0      0    0      0      4     0     0.00"
    assert score_sentence(GOLD.replace("(. .)", "(? ?)"), GOLD, Parameters()).message == "Length unmatch (5|4)"


def test_length_counts_punctuation_but_not_traces():
    gold = "(S (NP (N a)) (-NONE- *) (, ,) (VP (-NONE- *T*-1)))"
    assert score_sentence(gold, gold, Parameters()).length == 2
    assert score_sentence(gold, gold, NONE).length == 4
    assert counts(gold, gold) == (2, 2, 2, 0)


def test_several_root_brackets_are_scored():
    assert counts("(S (NP (N a)) (N b))", "(NP (N a)) (N b)") == (1, 2, 1, 0)
    assert counts("(NP (N a)) (N b)", "(S (NP (N a)) (N b))") == (1, 1, 2, 0)


def test_outer_penn_bracket_is_ignored():
    assert (
        counts(f"( {GOLD})", GOLD)
        == counts(GOLD, f"({GOLD})")
        == counts(f"(TOP {GOLD})", f"( {GOLD} )")
        == (4, 4, 4, 0)
    )
    assert counts("(TOP (N a))", "(S (N a))", NONE) == (0, 1, 1, 0)
    assert counts("( (N a))", "(S (N a))", NONE) == (0, 0, 1, 0)
    assert counts("(S ((N a)))", "( ((N a)))", NONE) == (1, 2, 1, 0)


def test_no_break_space_is_part_of_word():
    score = score_sentence("(S (N 1\u00a0000))", "(S (N 1\u00a0000))", Parameters())
    assert (score.status, score.words, score.matched) == (0, 1, 1)


def test_brackets_may_be_nested_beyond_recursion_limit():
    depth = 50_000
    assert counts("(S (N a))", f"(S {'(A ' * depth}(N a){')' * depth})") == (1, 1, depth + 1, 0)
    score = score_sentence("(S (N a))", "(A " * depth, Parameters())
    assert score.message.startswith(f"{depth} missing ')'")


# Malformed lines


MALFORMED = {
    "(S (N a)": "1 missing ')'; close each '(' in the same line",
    "(S (N a)))": "')' is outside of the trees; each tree begins with '(' and ends with its ')'",
    "a": "'a' is outside of the trees; each tree begins with '(' and ends with its ')'",
    "(S (N a)) b": "'b' is outside of the trees; each tree begins with '(' and ends with its ')'",
    "(S (N a) b)": "'b' has no tag; write each word as (TAG word)",
    "(N a b)": "'a' has no tag; write each word as (TAG word)",
}


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed_line_is_error_in_parse_rejected_in_gold(line):
    result = parseval(["(S (N a))", "(S (N a))"], [line, "(S (N a))"])
    assert [sentence.status for sentence in result.sentences] == [1, 0] and result.f1 == 100
    assert result.sentences[0].message == MALFORMED[line]
    assert str(result.sentences[0]) == "   1    1    1    0.00   0.00     0      0    0      0      1     0     0.00"
    with pytest.raises(UserError) as error:
        parseval(["(S (N a))", line], ["(S (N a))", "(S (N a))"], gold_name="test.gold")
    assert str(error.value) == f"test.gold:2: {MALFORMED[line]}"


def test_bracket_without_words_is_ignored():
    assert counts("(S (N a))", "(S (NP) (N a) (VP ( )))") == (1, 1, 1, 0)


def test_different_line_counts_are_rejected():
    with pytest.raises(UserError, match=r"^a\.gold and a\.parse must have the same number of sentences, got 3 and 2"):
        parseval([GOLD] * 3, [GOLD] * 2, gold_name="a.gold", test_name="a.parse")
    with pytest.raises(UserError, match="the same number of sentences, got 1 and 2"):
        parseval([GOLD], ["", GOLD])


def test_blank_lines_are_skipped_sentences():
    result = parseval([GOLD, "", "", GOLD, "", " "], [" \t", "", GOLD, "", ""])
    assert [(sentence.status, sentence.length) for sentence in result.sentences] == [(2, 5), (2, 0), (1, 0), (2, 5)]
    assert result.sentences[2].message == "Length unmatch (0|4)"
    assert (result.skipped, result.errors, result.valid) == (3, 1, 0)
    assert parseval([GOLD], ["(S (. .))"]).skipped == 1


def test_scores_without_brackets_are_0():
    for result in (parseval([], []), parseval([GOLD], [""]), parseval(["(TOP (N a))"], ["(TOP (N a))"])):
        assert (result.f1, result.recall, result.precision, result.average_crossing) == (0, 0, 0, 0)
        assert result.complete_match == result.no_crossing == result.two_or_less_crossing == result.tagging_accuracy
        assert result.no_crossing == (100 if result.valid else 0)
        assert "Bracketing FMeasure       =   0.00" in result.table()


def test_crossings_average_over_valid_sentences():
    gold = "(S (A (N a) (N b)) (N c))"
    crossed = ["(S (N a) (X (N b) (N c)))", "(S (N a) (X (X (X (N b) (N c)))))", gold, "", "("]
    result = parseval([gold] * 5, crossed)
    assert [sentence.crossing for sentence in result.sentences] == [1, 3, 0, 0, 0]
    assert result.average_crossing == pytest.approx(4 / 3) and result.no_crossing == pytest.approx(100 / 3)
    assert result.two_or_less_crossing == pytest.approx(200 / 3) and result.complete_match == pytest.approx(100 / 3)


def test_scores_report_error_sentences():
    errors, evalb, f1 = parseval(["(S (N a))"] * 3, ["", "(S (N b))", "(S (X (N a)))"]).scores()
    assert (evalb.name, evalb.value) == ("F1", pytest.approx(2 / 3 * 100))
    assert evalb.signature == "EVALB's rules, COLLINS.prm, labelled; 1 of 3 sentences (1 errors, 1 skipped)"
    assert str(errors) == "error sentences = 1"
    # One bracket matches. There are 3 gold brackets and 0 + 1 + 2 test brackets.
    assert (f1.name, f1.value) == ("F1 of all sentences", pytest.approx(200 / 6))
    assert "1 errors and 1 skipped count as unmatched" in f1.signature


# Sentences that EVALB ignores

EASY = "(S (NP (N a)) (VP (V b)))"
HARD = "(S (NP (N a) (N b)) (VP (V c) (NP (N d) (PP (P e) (NP (N f))))) (. .))"


def test_f1_of_all_sentences_counts_errors_as_unmatched():
    mistagged = "(S (NP (N a)) (VP (N b) (V c) (NP (N d) (N e) (N f) (N .))))"
    result = parseval([EASY, HARD, HARD], [EASY, mistagged, HARD.replace("PP", "ADJP")])
    # Brackets (matched, gold, test) per sentence: (3, 3, 3); (0, 6, 4), the error sentence; (5, 6, 6).
    assert result.errors == 1 and result.f1 == pytest.approx(200 * 8 / (9 + 9))
    assert result.f1_of_all_sentences == pytest.approx(200 * 8 / (15 + 13))
    assert result.sentences[1].gold == 6 and result.sentences[1].test == 4
    # EVALB prints zeros for error sentences.
    assert str(result.sentences[1]).split()[:8] == ["2", "7", "1", "0.00", "0.00", "0", "0", "0"]
    assert result.total("gold") == result.total("test") == 9


def test_f1_of_all_sentences_ranks_unlike_evalb():
    """Check that mistagging punctuation in hard sentences improves EVALB's F1, but not the F1 of all sentences."""
    worse = parseval([EASY, HARD], [EASY, HARD.replace("(. .)", "(N .)")])
    better = parseval([EASY, HARD], [EASY, HARD.replace("PP", "ADJP")])
    assert (worse.f1, worse.errors, better.errors) == (100, 1, 0)
    assert worse.f1 > better.f1 and worse.f1_of_all_sentences < better.f1_of_all_sentences == better.f1


@pytest.mark.parametrize(
    "test, brackets", [("", 0), ("(. .)", 0), ("(S (N a)", 0), ("a", 0), ("(S (NP (N a)) (X (V c)))", 3)]
)
def test_f1_of_all_sentences_counts_invalid_parses(test, brackets):
    result = parseval([EASY, EASY], [EASY, test])
    assert result.f1 == 100 and result.f1_of_all_sentences == pytest.approx(200 * 3 / (6 + 3 + brackets))


def test_f1_of_all_sentences_is_0_without_brackets():
    for result in (parseval([], []), parseval(["(TOP (N a))"], ["(TOP (N a))"])):
        assert result.f1_of_all_sentences == 0


@given(st.data())
def test_f1_of_all_sentences_matches_oracle(data):
    golds, tests, matched, total = [], [], 0, 0
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(1, 5))
        marks, counted = [], []
        for side in (golds, tests):
            tree = ["S", *data.draw(parses(size))]
            mark = data.draw(st.sets(st.integers(1, size), max_size=1))  # words tagged as punctuation
            side.append(written(tree, (f"(, x{i})" if i in mark else f"(N x{i})" for i in range(size))))
            marks.append(mark - {size})
            words = iter([None if i in mark else i for i in range(size)])
            counted.append(Counter(sets_of_words(tree, words)[1]))
        total += counted[0].total() + counted[1].total()
        matched += (counted[0] & counted[1]).total() if marks[0] == marks[1] else 0
    expected = 200 * matched / total if total else 0
    assert parseval(golds, tests).f1_of_all_sentences == pytest.approx(expected)


def test_by_label_scores_each_label():
    gold = "(S (NP (N a)) (VP (V b) (NP (N c)) (PRT (R d))))"
    test = "(S (NP (N a)) (VP (V b) (NP (N c)) (ADVP (R d))))"
    scores = {one.label: one for one in parseval([gold, gold], [test, "(S (X (N a) (N b) (N c) (N d)))"]).by_label()}
    assert list(scores) == ["NP", "S", "VP", "PRT", "ADVP", "X"]  # most gold brackets first, then most test brackets
    assert scores["NP"].figures() == {
        "gold": 4,
        "test": 2,
        "recall": 50,
        "precision": 100,
        "f1": pytest.approx(200 / 3),
    }
    assert (scores["S"].recall, scores["S"].precision, scores["VP"].recall) == (100, 100, 50)
    # ADVP and PRT match, but each bracket counts under its own label.
    assert (scores["PRT"].gold, scores["PRT"].test, scores["PRT"].recall, scores["PRT"].f1) == (2, 0, 50, 0)
    assert (scores["ADVP"].gold, scores["ADVP"].test, scores["ADVP"].precision) == (0, 1, 100)
    assert (scores["X"].precision, scores["X"].f1) == (0, 0)


def test_by_length_and_by_label_add_up(sample):
    result, _ = sample
    parts = result.by_length()
    assert sum(len(part.sentences) for part in parts.values()) == 24
    assert all(sentence.length in range(41, 51) for sentence in parts["41-50"].sentences)
    for name in ("matched", "gold", "test"):
        assert sum(part.total(name) for part in parts.values()) == result.total(name)
    labels = result.by_label()
    assert (sum(one.gold for one in labels), sum(one.test for one in labels)) == (98, 95)
    assert sum(one.gold * one.recall for one in labels) == pytest.approx(8600)
    assert sum(one.test * one.precision for one in labels) == pytest.approx(8600)
