"""Tests of every registered problem in both directions, from its corpus to batches and scores."""

import itertools
import shutil
import unicodedata

import numpy as np
import pytest
from helpers.logs import logged_lines

import keras_transformer as kt
from keras_transformer.config import registry
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.parsing.problem import ParsingProblem, TreebankProblem
from keras_transformer.parsing.treebanks import GUM_PARTITIONS, gum_files
from keras_transformer.tasks.problem import load_problem
from keras_transformer.tasks.translation import TranslationProblem

registry.load_catalog()
NO_CORPUS = "pretrained_text"
NAMES = [name for name, _ in registry.problems.describe() if not name.startswith(NO_CORPUS)]
PLAIN = ("wmt14_ende", "wmt14_enfr", "ted_pten", "iwslt15_envi")  # corpora that tests read from plain text files
MULTI30K_SIZES = {"train": 1_000, "validation": 100, "test": 100}  # only the first pairs; test_problems.py reads all
SYMBOL_SIZES = {"train": 300, "validation": 200, "test": 500}
SIZES = {
    "multi30k_ende": MULTI30K_SIZES, "multi30k_ende_tok": MULTI30K_SIZES,
    "multi30k_enfr": MULTI30K_SIZES, "multi30k_enfr_tok": MULTI30K_SIZES,
    "copy": SYMBOL_SIZES, "reverse": SYMBOL_SIZES, "sort": SYMBOL_SIZES,
    "toy_ende": {"train": 300, "validation": 500, "test": 1_000},
    "parallel_text": {"train": 190, "validation": 10},
    "multilingual_text": {"train": 380, "validation": 20},
    **dict.fromkeys(PLAIN, {"train": 200, "validation": 20, "test": 20}),
    "toy_parsing": {"train": 300, "validation": 500, "test": 1_000},
    "parsing_wsj": {"train": 309, "validation": 17, "test": 6},
    "parsing_gum": {"train": 63, "validation": 52, "test": 90},
    "parsing_english": {"train": 309 + 63, "validation": 17 + 52, "test": 6 + 90},
    "parsing_wsj_semisupervised": {"train": 2 * 309 + 63, "validation": 17, "test": 6},
    "parsing_english_semisupervised": {"train": 2 * (309 + 63) + 63, "validation": 17 + 52, "test": 6 + 90},
    "parsing_icepahc": {"train": 424, "validation": 23, "test": 23},
}  # fmt: skip
HPARAMS = kt.HParams(batch_tokens=4096, max_length=40)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with small text files. Tests also store the prepared corpora in it."""
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


@pytest.fixture(scope="module")
def multi30k(home, test_data):
    """Return a folder with the first lines of Multi30k."""
    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    for folder, suffix in (("raw", "{}.gz"), ("tok", "lc.norm.tok.{}")):
        (home / "multi30k" / folder).mkdir(parents=True)
        for split, count in MULTI30K_SIZES.items():
            for language in ("en", "de", "fr"):
                path = test_data / "multi30k" / folder / f"{names[split]}.{suffix.format(language)}"
                lines = "".join(f"{line}\n" for line in itertools.islice(read_lines(path), count))
                name = path.name.removesuffix(".gz")
                (home / "multi30k" / folder / name).write_text(lines, encoding="utf-8")
    return home / "multi30k"


@pytest.fixture(scope="module")
def treebanks(home, test_data):
    """Return a folder with a few WSJ files and the subfolders gum, icepahc and auto with a few files each."""
    folder, wsj, gum = home / "treebanks", test_data / "wsj_sample", test_data / "gum"
    if not all(path.is_dir() for path in (wsj, gum, test_data / "icepahc")):
        pytest.skip(f"not all treebanks are in {test_data}")
    for name in ("gum", "icepahc", "auto"):
        (folder / name).mkdir(parents=True)
    for number in (*range(1, 31), 180, 181, 190, 191):
        shutil.copy(wsj / f"wsj_{number:04d}.mrg", folder)
    lines = []
    for split, paths in gum_files(gum).items():
        lines += [f"## {GUM_PARTITIONS[split]}", *(f"  * {path.stem}" for path in paths[:2])]
        for path in paths[:2]:
            shutil.copy(path, folder / "gum")
            if split == "train":
                shutil.copy(path, folder / "auto")
    (folder / "gum" / "splits.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("1400.gunnar2.nar-sag.psd", "1883.voggur.nar-fic.psd"):
        shutil.copy(test_data / "icepahc" / name, folder / "icepahc")
    return folder


@pytest.fixture
def make(home, request):
    """Return a function that creates a problem by name, with little data and a small vocabulary."""

    def make(name):
        problem = registry.problems.get(name)
        arguments = {"data_dir": home / "data"}
        if problem.corpus.startswith("multi30k"):
            arguments |= {"raw_dir": request.getfixturevalue("multi30k"), "vocab_size": 800}
        elif problem.corpus in PLAIN:
            if problem.corpus == "wmt14_enfr":
                pytest.importorskip("tensorflow_text", reason="word pieces are learned with TensorFlow Text")
            arguments |= {"raw_dir": home / "plain", "vocab_size": 60}
        elif problem.corpus == "parallel_text":
            arguments |= {"raw_dir": home / "text", "vocab_size": 60}
        elif problem.corpus == "multilingual_text":
            arguments |= {"raw_dir": home / "text", "vocab_size": 60, "directions": "en-de,de-en"}
        elif issubclass(problem, TreebankProblem):
            folder = request.getfixturevalue("treebanks")
            inside = {"parsing_gum": "gum", "parsing_icepahc": "icepahc"}.get(name, ".")
            arguments |= {"raw_dir": folder / inside, "vocab_size": 1500}
            arguments |= {"auto_dir": str(folder / "auto"), "gold_share": 0.9} if "semi" in name else {}
        else:
            arguments |= {"train_pairs": 300}
            arguments |= {"vocab_size": 300} if issubclass(problem, TranslationProblem | ParsingProblem) else {}
        return load_problem(name, **arguments)

    return make


def test_all_corpora_are_covered():
    assert {registry.problems.get(name).corpus for name in NAMES} == SIZES.keys()


def test_pretrained_text_names_commands_for_scores():
    problem = kt.problem(NO_CORPUS, source="fr", target="de")
    assert (problem.input_language, problem.output_language) == ("fr", "de")
    with pytest.raises(kt.UserError, match="pretrained_text has no test split. To score translations, run"):
        list(problem.pairs("test"))
    with pytest.raises(kt.UserError, match="pretrained_text has no test split. To score translations, run"):
        problem.check_split("test")


@pytest.mark.parametrize("name", NAMES)
def test_problem_from_corpus_to_scores(make, name):
    problem = make(name).prepare()
    forwards = make(problem.corpus)
    examples = {split: list(problem.examples(split)) for split in problem.splits}
    assert {split: len(pairs) for split, pairs in examples.items()} == SIZES[problem.corpus]
    for split, pairs in examples.items():
        assert all(source.strip() and target.strip() for source, target in pairs)
        order = slice(None, None, -1 if problem.reversed else 1)
        assert [pair[order] for pair in pairs] == list(forwards.examples(split))
    check_shared(problem, forwards)
    check_tokenizer(problem, examples["train"])
    check_store(problem, examples)
    check_batches(problem, examples)
    check_scores(problem, examples["validation"])


def check_shared(problem, forwards):
    """Assert that both directions share one corpus, which `prepare` does not prepare again.

    Some corpora have validation pairs that are also training pairs. `prepare` warns about these pairs in each call,
    so this warning is allowed.
    """
    with logged_lines() as lines:
        assert forwards.prepare().prepared_dir == problem.prepared_dir
    assert all("the training text contains" in line for line in lines)
    assert forwards.tokenizer.fingerprint == problem.tokenizer.fingerprint


def check_tokenizer(problem, pairs):
    """Assert that decoding restores the encoded training texts, up to the problem's normalization.

    For treebanks, decoding must restore trees exactly, but it may normalize the words of sentences.
    """
    tokenizer, parsing = problem.tokenizer, isinstance(problem, ParsingProblem)
    sources, targets = zip(*pairs[:500])
    source_ids, target_ids = tokenizer.encode(sources), tokenizer.encode_targets(targets)
    for ids in (source_ids, target_ids):
        assert not {PAD, EOS, BOS, UNK} & {i for row in ids for i in row}
        assert max(map(max, ids)) < tokenizer.vocab_size
    outputs = list(targets) if parsing else [normalized(target, problem) for target in targets]
    assert tokenizer.decode_outputs(sources, target_ids) == outputs
    assert tokenizer.decode(source_ids) == [normalized(source, problem) for source in sources]
    if parsing:
        of_sources, of_targets = ({i for row in ids for i in row} for ids in (source_ids, target_ids))
        assert of_targets <= {*tokenizer.symbols.values()} and not of_targets & of_sources


def normalized(text, problem):
    """Return the normalized text. For parsing, also replace the treebank's spellings of quotes and slashes."""
    parsing = isinstance(problem, ParsingProblem)
    if parsing or getattr(problem, "normalization", "identity") == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    words = text.split()
    if parsing:
        words = [{"``": '"', "''": '"'}.get(word, word).replace("\\/", "/") for word in words]
    return " ".join(words)


def encoded(tokenizer, pair):
    """Return the token ids of the source and the target as [source ids, target ids]."""
    source, target = pair
    return tokenizer.encode([source]) + tokenizer.encode_targets([target])


def check_store(problem, examples):
    """Assert that the first and last pairs of each prepared split have the order and direction of the problem."""
    for split, pairs in examples.items():
        stored = problem.store.split(split)
        assert len(stored) == len(pairs)
        for row in (0, len(pairs) - 1):
            ids = [list(side[row]) for side in (stored.source, stored.target)]
            assert ids == [side + [EOS] for side in encoded(problem.tokenizer, pairs[row])]


def check_batches(problem, examples):
    """Assert that training batches respect `batch_tokens`, and that validation batches contain each pair once."""
    batches = problem.batches("train", HPARAMS)
    for (source, decoder_input), labels, weights in (batches[0], batches[1]):
        assert len(source) == len(labels) and decoder_input.shape == labels.shape == weights.shape
        assert max(source.size, labels.size) <= HPARAMS.batch_tokens
        assert (decoder_input[:, 0] == BOS).all() and (decoder_input[:, 1:] == labels[:, :-1]).all()
        np.testing.assert_allclose(weights, (labels != PAD) / (labels != PAD).sum(), rtol=1e-6)
    validation, found = problem.batches("validation", HPARAMS), []
    for (source, _), labels, _ in map(validation.__getitem__, range(validation.num_batches)):
        rows = [row for row in zip(source.tolist(), labels.tolist()) if any(row[0])]  # drop padding rows
        found += [tuple(problem.tokenizer.decode(row)) for row in rows]
    tokenizer = problem.tokenizer
    assert sorted(found) == sorted(tuple(tokenizer.decode(encoded(tokenizer, pair))) for pair in examples["validation"])


def check_scores(problem, pairs):
    """Assert that the references score 100, and that references in another order score less than 50."""
    references = [target for _, target in pairs]
    perfect = {score.name: score.value for score in problem.score(references, references)}
    assert perfect.pop("error sentences", 0) == 0
    assert all(value == pytest.approx(100) for value in perfect.values())
    assert problem.score(references[1:] + references[:1], references)[-1].value < 50
