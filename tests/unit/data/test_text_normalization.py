"""Tests of text normalization: characters that survive a round trip through the tokenizer, and defaults of problems."""

import unicodedata

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.data.tokenizers.base import UNK
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

CHARACTERS = "aefin½…²，「」ﬁ³€ﬀＡ№e\u0301é\u00ad\u200b\ufeff'«»;"
SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u3000"
PAIRS = [
    (f"Half ½ of 5 m² … {number}， said 「he」\u00a0!", f"Die Hälfte, ½, von 5 m² … {number}，\u202fsagt 「er」\u3000!")
    for number in range(60)
]


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train([f"{CHARACTERS} {char}{char} a{char}" for char in CHARACTERS + SPACES], 60)


def with_plain_spaces(text):
    return " ".join(text.split())


@given(text=st.text(CHARACTERS + SPACES))
@example(text="\u00a0½ … \u3000\u2028 ²，「ﬁ」\u202f\n")
@example(text="e\u0301e é")
def test_tokenizer_restores_learned_characters(tokenizer, text):
    ids = tokenizer.encode([text])
    assert UNK not in ids[0] and tokenizer.decode(ids) == [with_plain_spaces(text)]


def test_tokenizer_treats_unicode_spaces_as_spaces(tokenizer):
    spaces = [char for char in map(chr, range(0x110000)) if char.isspace()]
    assert set(SPACES) <= set(spaces)
    expected = tokenizer.encode(["a b"] * len(spaces))
    assert tokenizer.encode([f"{char}a{char}{char}b{char}" for char in spaces]) == expected
    assert tokenizer.encode(["▁a▁▁b"]) == expected[:1]  # SentencePiece marks spaces with "▁"


def test_model_file_alone_normalizes_spaces(tokenizer):
    """Use SentencePiece directly, as users of an export for CTranslate2 do."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.to_bytes())
    assert processor.encode("\u3000½\u00a0…\u2003²") == tokenizer.encode(["½ … ²"])[0]


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("identity", "½ m² ＡB"), ("nfkc", "1⁄2 m2 AB"), ("nfkc_cf", "1⁄2 m2 ab")],
)
def test_tokenizer_applies_the_chosen_normalization(normalization, expected):
    tokenizer = SentencePieceTokenizer.train(
        ["½ m² ＡB 12⁄ ab AB"] * 9, 21, VocabularyOptions(normalization=normalization)
    )
    assert tokenizer.decode(tokenizer.encode(["½\u00a0m²  ＡB"])) == [expected]


def test_vocabulary_training_prints_nothing(capfd):
    SentencePieceTokenizer.train(["½ m² ＡB"] * 9, 14)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text").mkdir()
    for side, language in enumerate(("en", "de")):
        for split in ("train", "validation"):
            lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
            (tmp_path / "text" / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return {"raw_dir": tmp_path / "text", "data_dir": tmp_path / "data", "vocab_size": 90}


@pytest.mark.parametrize("normalization", [None, "nfkc"])
def test_parallel_text_normalizes_only_on_request(corpus, normalization):
    settings = {"normalization": normalization} if normalization else {}
    problem = load_problem("parallel_text", **corpus, **settings).prepare()
    targets = problem.store.split("validation").target
    found = problem.tokenizer.decode([targets[row] for row in range(len(targets))])
    form = "NFKC" if normalization else None
    references = [with_plain_spaces(target) for _, target in PAIRS]
    assert found == [unicodedata.normalize(form, text) if form else text for text in references]


def test_bpe_dropout_keeps_raw_text(corpus):
    problem = load_problem("parallel_text", **corpus, bpe_dropout=0.2, num_segmentations=2).prepare()
    sources = problem.store.split("train").source
    found = problem.tokenizer.decode([sources[row] for row in range(len(sources))])
    assert found == 2 * [with_plain_spaces(source) for source, _ in PAIRS]


@pytest.mark.parametrize("name", ["multi30k_ende", "multi30k_fren", "multi30k_deen_tok"])
def test_multi30k_normalizes_as_published(name):
    assert load_problem(name).normalization == "nfkc"


@pytest.mark.parametrize("name", ["wmt14_ende", "wmt14_enfr", "ted_pten", "iwslt15_envi", "toy_ende"])
def test_other_problems_do_not_normalize_characters(name):
    arguments = {"raw_dir": "text"} if name == "iwslt15_envi" else {}
    assert load_problem(name, **arguments).normalization == "identity"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("toy_ende", "nfc", "unknown normalization 'nfc': did you mean nfkc"),
     ("wmt14_fren", "nfkc", "unknown normalization 'nfkc': choose one of identity")],
)  # fmt: skip
def test_problem_rejects_other_normalizations(name, value, said):
    with pytest.raises(UserError, match=said):
        load_problem(name, normalization=value)
