"""Tests of the insertion of placeholders into training pairs, and of prepared corpora with placeholders."""

import random
import re

import pytest
from helpers.errors import complaint
from helpers.stores import new_store
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import encoding
from keras_transformer.data.encoding import Noise
from keras_transformer.data.placeholder_insertion import MOST, SHARE, insert_placeholders
from keras_transformer.data.placeholders import ADDRESS, PLACEHOLDER
from keras_transformer.tasks.problem import load_problem

WORDS = st.sampled_from(["in", "2016", "3.5", "www.x.org/a", "me@x.org", "<2de>", "<ph2>", "在2016年", "हिन्दी", "!"])
SENTENCES = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)
PAIR = ("In 2016 Berlin won 3.5 points.", "Im Jahr 2016 gewann Berlin 3.5 Punkte.")


def inserted(source, target, count=8, trials=500):
    """Insert placeholders with many seeds. Return the distinct results that differ from the original pair."""
    pairs = {insert_placeholders(source, target, count, SHARE, random.Random(seed)) for seed in range(trials)}
    return pairs - {(source, target)}


def replaced(new, old):
    """Return {placeholder: the text that it replaces}."""
    names = [match[0] for match in PLACEHOLDER.finditer(new)]
    pattern = "(.+)".join(map(re.escape, PLACEHOLDER.split(new)[::2]))
    return dict(zip(names, re.fullmatch(pattern, old).groups(), strict=True))


@given(SENTENCES, SENTENCES, st.integers(1, 8), st.integers(0, 2**40))
def test_inserted_placeholders_agree_on_both_sides(source, target, count, seed):
    pair = insert_placeholders(source, target, count, 0.5, random.Random(seed))
    assert pair == insert_placeholders(source, target, count, 0.5, random.Random(seed))
    old = {*PLACEHOLDER.findall(source + target)}
    new, other = ([name for name in PLACEHOLDER.findall(text) if name not in old] for text in pair)
    assert sorted(new) == sorted(other) == sorted({*new})
    assert all(1 <= int(name) <= count for name in new)


def test_random_share_of_pairs_gets_placeholders():
    changed = [insert_placeholders(*PAIR, 8, 0.1, random.Random(row)) != PAIR for row in range(4000)]
    assert sum(changed) / len(changed) == pytest.approx(0.1, abs=0.02)


def test_common_words_become_placeholders():
    found = [(replaced(source, PAIR[0]), replaced(target, PAIR[1])) for source, target in inserted(*PAIR)]
    assert all(source == target for source, target in found)
    assert {word for source, _ in found for word in source.values()} == {"2016", "Berlin", "3.5"}
    assert {len(source) for source, _ in found} == {1, 2, 3} and MOST == 3
    assert len({name for source, _ in found for name in source}) == 8


def test_addresses_always_become_placeholders():
    pair = ("See www.x.org/a (me@x.org, www.y.org) 7.", "Siehe www.x.org/a (me@x.org, www.z.org) 7.")
    for seed in range(50):
        source, target = insert_placeholders(*pair, 8, 0.0, random.Random(seed))
        assert {*replaced(source, pair[0]).values()} == {"www.x.org/a", "me@x.org"}
        assert replaced(source, pair[0]) == replaced(target, pair[1])
        assert "www.y.org" in source and "www.z.org" in target


def test_pairs_without_common_words_get_outer_placeholders():
    pairs = {tuple(PLACEHOLDER.sub("#", text) for text in pair) for pair in inserted("<2de> <bt> A dog!", "Ein Hund !")}
    assert pairs >= {("<2de> <bt> # A dog!", "# Ein Hund !"), ("<2de> <bt> A dog #!", "Ein Hund # !")}
    assert ("<2de> <bt> # A dog # #!", "# Ein Hund # # !") in pairs
    pairs = {tuple(PLACEHOLDER.sub("#", text) for text in pair) for pair in inserted("हिन्दी", "你好。")}
    assert pairs >= {("# हिन्दी", "#你好。"), ("हिन्दी #", "你好#。")}


def test_numbers_between_unspaced_characters_are_words():
    pairs = inserted("In 2016", "在2016年")
    assert {PLACEHOLDER.sub("#", target) for _, target in pairs} == {"在#年"}


def test_insertion_spares_tags_and_repeated_words():
    assert not [pair for pair in inserted("<2de> de de 2", "de 2 2 x") if "<2de>" not in pair[0]]
    assert all(PLACEHOLDER.sub("", target).split() == ["de", "2", "2"] for _, target in inserted("2 de de", "de 2 2"))


# Prepared corpora


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Folder with 400 training and 20 validation pairs. Each pair contains a number, and every fourth a web address."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, rows in (("train", range(400)), ("validation", range(1000, 1020))):
        ends = [f" www.x.org/{row}." if row % 4 == 0 else "." for row in rows]
        for language, start in (("en", "the number"), ("de", "die Zahl")):
            lines = (f"{start} {row}{end}\n" for row, end in zip(rows, ends))
            (folder / f"{split}.{language}").write_text("".join(lines))
    return folder


def load(corpus, tmp_path, **parameters):
    return load_problem("parallel_text", raw_dir=corpus, data_dir=tmp_path / "data", **{"vocab_size": 80, **parameters})


def texts_of(store, split="train"):
    pairs = store.split(split)
    sides = ([side[i].tolist() for i in range(len(pairs))] for side in (pairs.source, pairs.target))
    return [*zip(*map(store.tokenizer.decode, sides))]


def test_training_pairs_get_placeholders(corpus, tmp_path):
    problem = load(corpus, tmp_path, placeholders=True, drop_duplicates=True).prepare()
    assert len(problem.tokenizer.placeholders) == 8
    train, originals = texts_of(problem.store), [*problem.examples("train")]
    assert len(train) == len(originals) == 400
    changed = [row for row, (new, old) in enumerate(zip(train, originals)) if new != old]
    assert {*range(0, 400, 4)} <= {*changed} and len(changed) == pytest.approx(130, abs=25)
    for row in changed:
        source, target = (replaced(new, old) for new, old in zip(train[row], originals[row]))
        assert source == target and {*source.values()} <= {str(row), f"www.x.org/{row}"}
    for new, old in zip(texts_of(problem.store, "validation"), problem.examples("validation"), strict=True):
        assert [*replaced(new[0], old[0]).values()] == [*replaced(new[1], old[1]).values()] == addresses_of(old[0])


def addresses_of(text):
    return [match[0] for match in ADDRESS.finditer(text)]


def test_corpus_without_placeholders_is_unchanged(corpus, tmp_path):
    problem = load(corpus, tmp_path).prepare()
    assert problem.tokenizer.placeholders == ()
    assert texts_of(problem.store) == [*problem.examples("train")]


def test_multilingual_sources_keep_their_tags(corpus, tmp_path):
    arguments = {"raw_dir": corpus, "data_dir": tmp_path, "vocab_size": 90, "placeholders": True}
    for joint in (True, False):
        problem = load_problem("multilingual_text", directions="en-de,de-en", joint_vocabulary=joint, **arguments)
        train = texts_of(problem.prepare().store)
        assert problem.tokenizer.languages == ("de", "en") and len(problem.tokenizer.placeholders) == 8
        assert all(re.match("<2(de|en)> ", source) for source, _ in train)
        assert sum("<ph" in source for source, _ in train) >= 200


def test_placeholders_are_independent_of_workers(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 70)
    monkeypatch.setattr(encoding, "SERIAL_PAIRS", 100)
    problem = load(corpus, tmp_path, placeholders=True).prepare()
    pairs, tokenizer = [*problem.examples("train")], problem.tokenizer
    for workers in (0, 2):
        noise = {"train": Noise(placeholders=SHARE)}
        store = new_store(tmp_path / str(workers), {"train": pairs}, tokenizer, workers=workers, noise=noise)
        assert texts_of(store) == texts_of(problem.store)


def test_vocabulary_file_must_match_placeholders(corpus, tmp_path):
    files = {
        placeholders: load(corpus, tmp_path, placeholders=placeholders).prepare().prepared_dir / "tokenizer.model"
        for placeholders in (False, True)
    }
    for placeholders, file in files.items():
        arguments = {"vocab_file": str(file), "vocab_size": 8000}
        same = load(corpus, tmp_path / "own", placeholders=placeholders, **arguments)
        assert bool(same.prepare().tokenizer.placeholders) == placeholders
        other = load(corpus, tmp_path / "other", placeholders=not placeholders, **arguments)
        message = complaint(other.prepare)
        if placeholders:
            assert message == (
                f"problem.placeholders must be true for {file}, which contains the piece <ph1>. "
                "Add --set problem.placeholders=true."
            )
        else:
            assert message.startswith("problem.vocab_file must contain the pieces <ph1> to <ph8> for placeholders=true")
            assert "--user_defined_symbols=<ph1>,<ph2>" in message


def test_word_pieces_reject_placeholders():
    message = complaint(load_problem, "wmt14_enfr", placeholders=True)
    assert "placeholders requires a SentencePiece vocabulary, not word pieces" in message
