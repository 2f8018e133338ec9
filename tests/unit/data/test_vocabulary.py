"""Tests of vocabulary settings: algorithm, character coverage, byte fallback, digits, symbols and existing models."""

import io
import random

import pytest
import sentencepiece
from helpers.logs import logged_lines

from keras_transformer.config.hparams import load_hparams
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import (
    VocabularyOptions,
    adapt_model,
    has_many_characters,
    parse_symbols,
)
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

TEXTS = [text for pair in load_problem("toy_ende").pairs("validation") for text in pair]
HAN = [chr(0x4E00 + i) for i in range(3000)]


def chinese(count, seed=1):
    """Return random sentences of Chinese characters. The frequency of a character is proportional to 1 / rank."""
    rng, weights = random.Random(seed), [1 / (rank + 1) for rank in range(len(HAN))]
    return ["".join(rng.choices(HAN, weights, k=20)) for _ in range(count)]


def trained(**options):
    return SentencePieceTokenizer.train(TEXTS, 400, VocabularyOptions(**options))


def plain_model(texts=TEXTS, **options):
    """Train a model with SentencePiece's defaults, which assign id 0 to <unk>. Return the model as bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=300, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.fixture
def corpus(tmp_path):
    """Folder with 300 pairs of parallel text."""
    for side in (0, 1):
        (tmp_path / f"train.{('en', 'de')[side]}").write_text("".join(f"{text}\n" for text in TEXTS[side:600:2]))
    return tmp_path


def parallel(corpus, **parameters):
    return load_problem("parallel_text", raw_dir=corpus, data_dir=corpus / "data", **parameters)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_vocabulary_kinds_restore_texts(kind, byte_fallback):
    tokenizer = trained(kind=kind, byte_fallback=byte_fallback)
    assert tokenizer.vocab_size == 400 and tokenizer.decode(tokenizer.encode(TEXTS)) == TEXTS
    new = "naïve “日本” 🙂"
    assert (tokenizer.decode(tokenizer.encode([new])) == [new]) == byte_fallback
    assert (UNK in tokenizer.encode([new])[0]) != byte_fallback


def test_vocabulary_kind_changes_pieces():
    assert trained().fingerprint == trained().fingerprint != trained(kind="unigram").fingerprint


def test_split_digits_makes_each_digit_a_piece():
    texts = [f"{text} in 2024" for text in TEXTS]
    whole, split = (
        SentencePieceTokenizer.train(texts, 400, VocabularyOptions(split_digits=digits)) for digits in (False, True)
    )
    assert whole.pieces(whole.encode(["2024"])[0]) == ["▁2024"]
    assert split.pieces(split.encode(["2024"])[0]) == ["▁", "2", "0", "2", "4"]


def test_character_coverage_drops_rare_characters():
    texts = [*TEXTS, "ß¿"]
    for coverage, known in ((1.0, True), (0.99, False)):
        tokenizer = SentencePieceTokenizer.train(texts, 400, VocabularyOptions(character_coverage=coverage))
        assert (UNK not in tokenizer.encode(["¿"])[0]) == known


def test_symbols_stay_whole():
    tokenizer = trained(symbols=parse_symbols("<br>, the,<br>"))
    pieces = tokenizer.pieces(tokenizer.encode(["a<br>b other"])[0])
    assert "<br>" in pieces and "the" in pieces
    with pytest.raises(UserError, match="must not contain the special piece <unk>"):
        parse_symbols("<x>,<unk>")


def test_automatic_options_depend_on_the_script():
    automatic = VocabularyOptions(character_coverage=None, byte_fallback=None)
    few, many = automatic.automatic(TEXTS), automatic.automatic(chinese(2000))
    assert (few.character_coverage, few.byte_fallback) == (1.0, False)
    assert (many.character_coverage, many.byte_fallback) == (0.9995, True)
    chosen = VocabularyOptions(character_coverage=None, byte_fallback=False).automatic(chinese(2000))
    assert (chosen.character_coverage, chosen.byte_fallback) == (0.9995, False)
    assert VocabularyOptions(character_coverage=0.99, byte_fallback=None).automatic(TEXTS).byte_fallback


def test_has_many_characters_ignores_rare_ones():
    assert not has_many_characters([]) and not has_many_characters([*TEXTS, *(" ".join(HAN[:20]) for _ in range(1))])
    assert not has_many_characters([TEXTS[0] * 10_000, "".join(HAN)[:1500]])
    assert has_many_characters(["".join(HAN)])


# Existing models


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_adapted_model_gives_same_pieces(kind):
    content = plain_model(model_type=kind, user_defined_symbols=["<x>"], control_symbols=["<mask>"])
    own = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = SentencePieceTokenizer(adapt_model(content, "own.model"))
    assert own.unk_id() == 0 and tokenizer.pieces(range(4)) == ["<pad>", "</s>", "<s>", "<unk>"]
    texts = [*TEXTS, "a <x> 日"]
    ids = tokenizer.encode(texts)
    assert [["<unk>" if i == UNK else piece for i, piece in zip(row, tokenizer.pieces(row))] for row in ids] == [
        ["<unk>" if i == 0 else own.id_to_piece(i) for i in row] for row in own.encode(texts)
    ]
    assert tokenizer.decode([[*row, EOS, PAD] for row in ids]) == own.decode(own.encode(texts))
    assert "<mask>" not in tokenizer.pieces(range(tokenizer.vocab_size))


def test_adapted_model_supports_bpe_dropout():
    tokenizer = SentencePieceTokenizer(adapt_model(plain_model(model_type="bpe"), "own.model"))
    ids = tokenizer.encode(TEXTS)
    assert tokenizer.resegment(ids, 0.0, 1) == ids
    assert tokenizer.decode(tokenizer.resegment(ids, 0.3, 1)) == tokenizer.decode(ids)
    assert tokenizer.resegment(ids, 0.3, 1) != ids


@pytest.mark.parametrize("content", [b"", b"some text\n", b"\x00\x01\x02", b"PK\x03\x04zip"])
def test_adapt_model_rejects_other_files(content):
    with pytest.raises(UserError, match="own.model is not a SentencePiece model"):
        adapt_model(content, "own.model")


def test_adapt_model_rejects_ordinary_special_piece():
    content = plain_model(user_defined_symbols=["<pad>"])
    with pytest.raises(UserError, match="own.model: <pad> must be a special piece"):
        adapt_model(content, "own.model")


# Settings of a problem


def test_vocabulary_settings_are_in_manifest_and_folder_name(corpus):
    changes = (
        {}, {"vocab_type": "unigram"}, {"character_coverage": 0.99}, {"byte_fallback": True}, {"split_digits": True},
        {"user_symbols": "<ph>"},
    )  # fmt: skip
    problems = [parallel(corpus, vocab_size=500, **change) for change in changes]
    assert len({problem.prepared_dir for problem in problems}) == len(changes)
    problem = problems[-1].prepare()
    assert problem.store.manifest["parameters"]["user_symbols"] == "<ph>"
    assert "<ph>" in problem.tokenizer.pieces(range(problem.tokenizer.vocab_size))


def test_prepare_logs_automatic_choice(tmp_path):
    texts = "".join(f"{text}\n" for text in chinese(1500))
    (tmp_path / "train.en").write_text(texts)
    (tmp_path / "train.zh").write_text(texts)
    problem = parallel(tmp_path, target="zh", vocab_size=4000)
    with logged_lines() as lines:
        problem.prepare()
    assert "  the text has many different characters; using character_coverage=0.9995, byte_fallback=true" in lines
    assert problem.tokenizer.decode(problem.tokenizer.encode(["龥龥"])) == ["龥龥"]
    dropout = parallel(tmp_path, target="zh", vocab_size=4000, bpe_dropout=0.1, num_segmentations=2).prepare()
    assert UNK in dropout.tokenizer.encode(["龥"])[0]


def test_vocab_file_replaces_learning(corpus):
    path = corpus / "own.model"
    path.write_bytes(plain_model())
    problem = parallel(corpus, vocab_file=str(path)).prepare()
    assert problem.tokenizer.vocab_size == 301  # the 300 pieces of the model, and <pad>
    assert str(path.resolve()) in problem.store.manifest["corpus"]
    first = problem.store.fingerprint
    path.write_bytes(plain_model(model_type="bpe"))
    assert parallel(corpus, vocab_file=str(path)).prepare().store.fingerprint != first


def test_vocabulary_settings_reject_contradictions(corpus):
    (corpus / "own.model").write_bytes(plain_model())
    for parameters, message in (
        ({"vocab_file": str(corpus / "own.model"), "split_digits": True}, "vocab_file cannot be combined with split_d"),
        ({"vocab_file": str(corpus / "own.model"), "vocab_size": 100}, "vocab_file cannot be combined with vocab_size"),
        ({"vocab_type": "unigram", "bpe_dropout": 0.1, "num_segmentations": 2}, "which vocab_type=unigram does not"),
        ({"byte_fallback": True, "bpe_dropout": 0.1, "num_segmentations": 2}, "which byte_fallback=true does not use"),
        ({"vocab_type": "word"}, "bpe, unigram"),
        ({"character_coverage": 0.95}, "character_coverage must be from 0.98 to 1, got 0.95"),
    ):
        with pytest.raises(UserError, match=message):
            parallel(corpus, **parameters)
    with pytest.raises(UserError, match="problem.vocab_file must be a file, got .*none.model"):
        parallel(corpus, vocab_file=str(corpus / "none.model")).prepare()
    with pytest.raises(UserError, match="split_digits requires a SentencePiece vocabulary, not word pieces"):
        load_problem("wmt14_enfr", split_digits=True)


# One vocabulary for each side


@pytest.fixture
def separate(corpus):
    """Prepared parallel text with a separate vocabulary of 250 pieces for each side."""
    return parallel(corpus, vocab_size=250, joint_vocabulary=False).prepare()


def test_separate_vocabularies_split_each_side_alone(separate):
    tokenizer = separate.tokenizer
    english, german = map(list, zip(*separate.pairs("train")))
    assert 250 < tokenizer.vocab_size < 500  # pieces that occur on both sides share an id
    for texts, ids in ((english, tokenizer.encode(english)), (german, tokenizer.encode_targets(german))):
        own = SentencePieceTokenizer.train(texts, 250)
        assert [tokenizer.pieces(row) for row in ids] == [own.pieces(row) for row in own.encode(texts)]
        assert tokenizer.decode(ids) == texts
    assert tokenizer.decode_outputs(english, tokenizer.encode_targets(german)) == german
    split = separate.store.split("train")
    assert tokenizer.decode([split.source[3]]) + tokenizer.decode([split.target[3]]) == [english[3], german[3]]


def test_separate_vocabularies_encode_no_special_tokens():
    russian = SentencePieceTokenizer.train(["кот сидит на коврике", "две собаки бегут по снегу"], 40)
    tokenizer = MarianTokenizer.join(russian, russian)  # has no pieces for Latin letters
    texts = ["кот </s>", "<pad> кот", "<s>"]
    for ids in (*tokenizer.encode(texts), *tokenizer.encode_targets(texts)):
        assert UNK in ids and not {PAD, EOS, BOS} & {*ids}


def test_separate_vocabularies_follow_the_direction(corpus, separate):
    backward = load_problem(
        "parallel_text_rev", raw_dir=corpus, data_dir=corpus / "data", vocab_size=250, joint_vocabulary=False
    )
    text = "Ein Hund sieht den Mann."
    assert backward.prepare().prepared_dir == separate.prepared_dir
    assert backward.tokenizer.encode([text]) == separate.tokenizer.encode_targets([text])
    assert backward.tokenizer.encode_targets([text]) == separate.tokenizer.encode([text])
    (source, _), labels, _ = backward.batches("validation", load_hparams("toy"))[0]
    text = backward.tokenizer.decode(source[:1].tolist())[0]
    assert backward.tokenizer.encode([text])[0] == [i for i in source[0].tolist() if i not in (PAD, EOS)]


def test_separate_vocabularies_reject_bpe_dropout_and_model_file(corpus):
    with pytest.raises(UserError, match="bpe_dropout cannot be combined with joint_vocabulary=false"):
        parallel(corpus, joint_vocabulary=False, bpe_dropout=0.1, num_segmentations=2)
    (corpus / "own.model").write_bytes(plain_model())
    with pytest.raises(UserError, match="vocab_file cannot be combined with joint_vocabulary"):
        parallel(corpus, joint_vocabulary=False, vocab_file=str(corpus / "own.model"))


def test_vocab_file_with_two_models_keeps_sides(separate, corpus):
    """Check that a problem and its reverse both encode sources with the source vocabulary of `vocab_file`."""
    separate.tokenizer.save(corpus)
    path = str(corpus / separate.tokenizer.file_name)
    problems = [
        load_problem(name, raw_dir=corpus, data_dir=corpus / "data", vocab_file=path).prepare()
        for name in ("parallel_text", "parallel_text_rev")
    ]
    assert {problem.tokenizer.fingerprint for problem in problems} == {separate.tokenizer.fingerprint}
    assert problems[0].prepared_dir != problems[1].prepared_dir
    vocabulary = corpus / "vocab.json"
    vocabulary.write_text('{"<pad>": 0}')
    with pytest.raises(UserError, match="vocab.json is not a valid marian_tokenizer.json"):
        parallel(corpus, vocab_file=str(vocabulary)).prepare()
