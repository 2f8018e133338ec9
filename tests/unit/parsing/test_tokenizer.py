"""Tests of tree tokenizers."""

import itertools

import pytest
from helpers.errors import complaint

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.parsing.linearize import linearize
from keras_transformer.parsing.problem import sentence_of
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.parsing.tree import escaped, tree_of
from keras_transformer.utils.text import split_words

TREES = [
    "(S (NP (DT the) (NN NN)) (VP (VBZ barks)) (. .))",
    "(S (`` ``) (NP (PRP$ my) (NN dog)) (, ,) ('' '') (-LRB- -LRB-) (NN 1\\/2) (-RRB- -RRB-))",
    '(TOP (X (" ") (FW "hund")) (X+Y (N-N ½)))',
] * 4
SENTENCES = [sentence_of(tree_of(tree)) for tree in TREES]
SYMBOLS = {symbol for tree in TREES for symbol in linearize(tree_of(tree))}


@pytest.fixture(scope="module")
def tokenizer():
    return TreeTokenizer.train(SENTENCES, SYMBOLS, 200)


@pytest.fixture(scope="module")
def untagged():
    return TreeTokenizer.train(SENTENCES, {s for s in SYMBOLS if s[0] in "()"} | {"XX"}, 200)


def test_tree_tokenizer_encodes_symbols_as_one_piece(tokenizer):
    assert tokenizer.symbols.keys() == SYMBOLS and len({*tokenizer.symbols.values()}) == len(SYMBOLS)
    for symbol, i in tokenizer.symbols.items():
        assert tokenizer.pieces([i]) == [f"⟪{symbol}⟫"] and i > UNK
    (ids,) = tokenizer.encode_targets(TREES[:1])
    assert tokenizer.decode([[BOS, *ids, EOS, PAD]]) == ["(S (NP DT NN )NP (VP VBZ )VP . )S"]
    both = TreeTokenizer.train(SENTENCES, {"(S", ")NP", "NN"}, 200).symbols
    assert both.keys() == {"(S", ")S", "(NP", ")NP", "NN"}


def test_tree_tokenizer_keeps_words_apart_from_symbols(tokenizer):
    words = ["NN", "(", "(S", ")S", "XX", "``", "⟪NN⟫", "⟪", ",", "-LRB-"]
    assert not {*tokenizer.symbols.values()} & {i for row in tokenizer.encode(words) for i in row}
    assert TreeTokenizer.train(["a⟪b⟫ c⟪b⟫ d⟪⟫ e⟪⟫ -LRB- 1\\/2"] * 9, SYMBOLS, 200).symbols.keys() == SYMBOLS


def test_tree_vocabulary_size_is_limited_by_text(tokenizer):
    smaller = TreeTokenizer.train(SENTENCES, SYMBOLS, tokenizer.vocab_size - 5)
    larger = TreeTokenizer.train(SENTENCES, SYMBOLS, 5000)
    assert smaller.vocab_size + 5 == tokenizer.vocab_size == larger.vocab_size < 200
    assert smaller.symbols.keys() == larger.symbols.keys()
    assert "to contain every character of the training text" in complaint(TreeTokenizer.train, SENTENCES, SYMBOLS, 30)
    assert "contains only blank lines" in complaint(TreeTokenizer.train, ["", " "], SYMBOLS, 200)


def test_tree_tokenizer_saves_and_loads(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, TreeTokenizer) and loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.symbols, loaded.encode(SENTENCES)) == (tokenizer.symbols, tokenizer.encode(SENTENCES))


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "no symbols"])
def test_damaged_tree_tokenizer_is_rejected(tokenizer, tmp_path, damage):
    whole = tokenizer.to_bytes()
    plain = SentencePieceTokenizer.train(SENTENCES, 60).to_bytes() if damage == "no symbols" else b""
    content = {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"(S\n)S\n", "no symbols": plain}[damage]
    (tmp_path / TreeTokenizer.file_name).write_bytes(content)
    assert f"{tmp_path / TreeTokenizer.file_name} is damaged" in complaint(load_tokenizer, tmp_path)


def test_tree_tokenizer_restores_trees(tokenizer):
    assert SENTENCES[1] == "`` my dog , '' ( 1\\/2 )"
    ids = tokenizer.encode_targets(TREES)
    assert tokenizer.decode_outputs(SENTENCES, [[BOS, *row, EOS, PAD] for row in ids]) == TREES
    assert tokenizer.decode_outputs(["", " ", "a b"], [ids[0], [], []]) == ["", "", "(TOP (XX a) (XX b))"]
    assert tokenizer.encode_targets(["", " ", TREES[0]]) == [[], [], ids[0]]
    assert "not closed" in complaint(tokenizer.encode_targets, [TREES[0][:-1]])


def test_tree_tokenizer_maps_other_symbols_to_unk(tokenizer):
    row = tokenizer.encode_targets(["(S (WHNP (NN a)) (WP b))"])[0]
    assert [tokenizer.symbols["(S"], UNK, tokenizer.symbols["NN"], UNK, UNK, tokenizer.symbols[")S"]] == row
    assert tokenizer.decode_outputs(["a b"], [row]) == ["(TOP (S (NN a)) (XX b))"]


def test_tree_tokenizer_encodes_prefixes(tokenizer):
    ids = [[tokenizer.symbols[symbol] for symbol in text.split()] for text in ("(S (NP DT", "", "(X")]
    assert tokenizer.encode_prefixes(["(S (NP DT", "", " (X "]) == ids
    for text, wrong in (("(S (WHNP", "(WHNP"), ("(S dog", "dog"), ("(NP (NN", "(NN")):
        assert complaint(tokenizer.encode_prefixes, ["(S", text]).startswith(f"{wrong!r} is not a bracket or tag")


def test_untagged_tree_tokenizer_ignores_tags(tokenizer, untagged):
    assert tokenizer.tagged and not untagged.tagged
    ids = untagged.encode_targets(TREES)
    assert UNK not in itertools.chain(*ids)
    assert untagged.decode(ids)[0] == "(S (NP XX XX )NP (VP XX )VP XX )S"
    assert untagged.decode_outputs(SENTENCES, ids)[0] == "(S (NP (XX the) (XX NN)) (VP (XX barks)) (XX .))"
    assert untagged.encode_targets(["(S (XX a) (WP b))"]) == untagged.encode_targets(["(S (NN a) (NN b))"])


def test_xx_tag_does_not_make_tokenizer_untagged():
    mixed = TreeTokenizer.train(SENTENCES, SYMBOLS | {"XX"}, 200)  # unparsed sentences have the tag XX
    tree = "(S (XX the) (NN dog))"
    assert mixed.decode_outputs(["the dog"], mixed.encode_targets([tree])) == [tree]


def test_treebank_spellings_share_pieces(tokenizer):
    for alike in (("``", '"', "''"), ("(", "-LRB-"), ("1/2", "1\\/2"), ("[a", "-LSB-a"), ("my  dog", " my\tdog ")):
        first, *others = tokenizer.encode(alike)
        assert others == [first] * len(others), alike
    assert len({*map(tuple, tokenizer.encode(["`` dog ''", "` dog '", '" dog "', "``dog''"]))}) == 3


@pytest.mark.parametrize("sentence", ["½ 1½ ｆｕｌｌ … ﷺ", "10\u00a0000 a\u3000b", "\u200b \u00ad ﬁ", "( -LRB- } <"])
def test_tree_outputs_keep_words_before_normalization(tokenizer, sentence):
    words = split_words(sentence)
    tree = f"(S {' '.join(f'(NN {escaped(word)})' for word in words)})"
    assert tokenizer.decode_outputs([sentence], tokenizer.encode_targets([tree])) == [tree]
    assert tree_of(tokenizer.decode_outputs([sentence], [[]])[0]).words() == [escaped(word) for word in words]


@pytest.mark.parametrize("word", ["\ufffd", "a\ufffdb", "\ufffdb", "▁", "\u200b"])
def test_tree_tokenizer_marks_one_start_per_word(tokenizer, word):
    (ids,) = tokenizer.encode([f"dog {word} dog"])
    assert tokenizer.word_starts[ids].sum() == 3
