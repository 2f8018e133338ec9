"""What holds of every registered problem, in both directions: from its corpus to batches and scores."""

import unicodedata

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import registry
from keras_transformer.data.tokenizer import BOS, EOS, PAD, UNK
from keras_transformer.tasks import TranslationProblem, load_problem

registry.load_catalog()
NAMES = [name for name, _ in registry.problems.describe()]
PLAIN = ("wmt14_ende", "wmt14_enfr", "ted_pten", "iwslt15_envi")  # read here from plain files, as --raw_dir names them
MULTI30K_SIZES = {"train": 29_000, "validation": 1_014, "test": 1_000}
SYMBOL_SIZES = {"train": 300, "validation": 200, "test": 500}
SIZES = {
    "multi30k_ende": MULTI30K_SIZES, "multi30k_ende_tok": MULTI30K_SIZES, "multi30k_enfr": MULTI30K_SIZES,
    "copy": SYMBOL_SIZES, "reverse": SYMBOL_SIZES, "sort": SYMBOL_SIZES,
    "toy_ende": {"train": 300, "validation": 500, "test": 1_000},
    "parallel_text": {"train": 190, "validation": 10},
    **dict.fromkeys(PLAIN, {"train": 200, "validation": 20, "test": 20}),
}  # fmt: skip
HPARAMS = kt.HParams(batch_tokens=4096, max_length=40)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder of all prepared corpora, so that a problem and its reverse share one; and a corpus of one's own."""
    home = tmp_path_factory.mktemp("home")
    (home / "text").mkdir()
    for language, line in (("en", "{} times itself is {} ."), ("de", "{} mal sich selbst ist {} .")):
        lines = "".join(line.format(i, i * i) + "\n" for i in range(200))
        (home / "text" / f"train.{language}").write_text(lines, encoding="utf-8")
    (home / "plain").mkdir()
    for split, count in SIZES["ted_pten"].items():
        for language in ("en", "de", "fr", "pt", "vi"):
            lines = "".join(f"{language} {i} and {i * i} .\n" for i in range(count))
            (home / "plain" / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return home


@pytest.fixture
def make(home, request):
    """Makes the problem of a name, with less data and a smaller vocabulary where it is no published corpus."""

    def make(name):
        problem = registry.problems.get(name)
        arguments = {"data_dir": home / "data"}
        if problem.corpus.startswith("multi30k"):
            arguments |= {"raw_dir": request.getfixturevalue("test_data") / "multi30k", "vocab_size": 2000}
        elif problem.corpus in PLAIN:
            if problem.corpus == "wmt14_enfr":
                pytest.importorskip("tensorflow_text", reason="word pieces are learned with TensorFlow Text")
            arguments |= {"raw_dir": home / "plain", "vocab_size": 60}
        elif problem.corpus == "parallel_text":
            arguments |= {"raw_dir": home / "text", "vocab_size": 60}
        else:
            arguments |= {"train_pairs": 300}
            arguments |= {"vocab_size": 300} if issubclass(problem, TranslationProblem) else {}
        return load_problem(name, **arguments)

    return make


def test_every_corpus_is_tested():
    assert {registry.problems.get(name).corpus for name in NAMES} == SIZES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_problem(make, name):
    problem = make(name).prepare()
    forwards = make(problem.corpus)
    examples = {split: list(problem.examples(split)) for split in problem.splits}
    assert {split: len(pairs) for split, pairs in examples.items()} == SIZES[problem.corpus]
    for split, pairs in examples.items():
        assert all(source.strip() and target.strip() for source, target in pairs)
        order = slice(None, None, -1 if problem.reversed else 1)
        assert [pair[order] for pair in pairs] == list(forwards.examples(split))
    check_shared(problem, forwards)
    check_tokenizer(problem.tokenizer, examples["train"])
    check_store(problem, examples)
    check_batches(problem, examples)
    check_scores(problem, examples["validation"])


def check_shared(problem, forwards):
    """Both directions have one prepared corpus, which is not prepared again."""
    said = []
    assert forwards.prepare(said.append).prepared_dir == problem.prepared_dir and not said
    assert forwards.tokenizer.fingerprint == problem.tokenizer.fingerprint


def check_tokenizer(tokenizer, pairs):
    """Training texts come back as they were, but for the forms of characters and spaces that SentencePiece unites."""
    texts = [text for pair in pairs[:500] for text in pair]
    ids = tokenizer.encode(texts)
    assert not {PAD, EOS, BOS, UNK} & {i for row in ids for i in row}
    assert max(map(max, ids)) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == [" ".join(unicodedata.normalize("NFKC", text).split()) for text in texts]


def check_store(problem, examples):
    """The prepared corpus holds the pairs in their order, source and target in the problem's direction."""
    for split, pairs in examples.items():
        stored = problem.store.split(split)
        assert len(stored) == len(pairs)
        for row in (0, len(pairs) - 1):
            ids = [list(side[row]) for side in (stored.source, stored.target)]
            assert ids == [encoded + [EOS] for encoded in problem.tokenizer.encode(pairs[row])]


def check_batches(problem, examples):
    """Training batches are within the budget; those of the validation hold each pair once."""
    batches = problem.batches("train", HPARAMS)
    for (source, decoder_input), labels, weights in (batches[0], batches[1]):
        assert len(source) == len(labels) and decoder_input.shape == labels.shape == weights.shape
        assert max(source.size, labels.size) <= HPARAMS.batch_tokens
        assert (decoder_input[:, 0] == BOS).all() and (decoder_input[:, 1:] == labels[:, :-1]).all()
        np.testing.assert_allclose(weights, (labels != PAD) / (labels != PAD).sum(), rtol=1e-6)
    validation, found = problem.batches("validation", HPARAMS), []
    for (source, _), labels, _ in map(validation.__getitem__, range(validation.num_batches)):
        rows = [row for row in zip(source.tolist(), labels.tolist()) if any(row[0])]  # a shape may hold empty rows
        found += [tuple(problem.tokenizer.decode(row)) for row in rows]
    tokenizer = problem.tokenizer
    assert sorted(found) == sorted(tuple(tokenizer.decode(tokenizer.encode(pair))) for pair in examples["validation"])


def check_scores(problem, pairs):
    """The references are perfect outputs; each in the next one's place, they are not."""
    references = [target for _, target in pairs]
    assert all(score.value == pytest.approx(100) for score in problem.score(references, references))
    assert problem.score(references[1:] + references[:1], references)[-1].value < 50
