"""Tests that tokenizers in a TensorFlow graph return the same ids and texts as the Python tokenizers."""

import numpy as np
import pytest
from helpers.marian import write_marian
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.data.tokenizers.base import SPECIAL
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.parsing.grammar import CLOSE, OPEN, TAG
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.parsing.tree import tree_of
from keras_transformer.pretrained.huggingface import read_marian
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import split_words

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
from keras_transformer.exports.saved_model import graph_tokenizer  # noqa: E402

SENTENCES = [
    "A man in a blue shirt is standing on a ladder.", "Ein Mann in einem blauen Hemd steht auf einer Leiter!",
    "l'été, « la Révolution » ; 1 234 ans", "`` It works , '' she said ( twice ) { once } [ never ]",
] * 5  # fmt: skip
TREES = [
    "(S (NP (PRP It)) (VP (VBZ works)) (. .))",
    "(S (NP (DT The) (-LRB- -LRB-) (NN dog)) (VP (VBZ barks) (ADVP (RB loudly))))",
    "(FRAG (X (NN a)))",
]
AWKWARD = [
    "", " ", "\u3000", " \t\n ", "▁", "▁▁ a▁b", "a\u00a0b\u202fc\u2028d\x85e\x1cf\ng", "日本 😀👩‍👩‍👧!", "\ufeffbom",
    "e\u0301 \u0301 ﬁ ½ Å", "… m² ，「」\u3000½",
    "<s> </s> <pad> <unk>", "<pad>", "x" * 3000, "\x00a\x01 \x7f", "-]^[a .* $ \\1 \\0", "a<ph1>b 2024",
    "<2de> The dog", " <2de>The dog",
    "\ud7ff\ue000\uffff\U0010ffff", "-LRB- -LRB-x-RRB- \\/ a\\/b `` '' ``a ⟪(S⟫ <<",
    "\u200b \u00ad a\u200bb", "(S (NN a))", ">>tr<< The dog", " >>tr<<The\ndog", ">>xx<< The dog", ">>tr<<",
    "\u00a0>>tr<< The dog", "\u3000>>tr<<",
]  # fmt: skip
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("aelnt12 ;▁\\«»'’!()-LRB\u00a0\u202f\u0301é`⟪⟫/\u200b")
)


@pytest.fixture(scope="module")
def pieces():
    return SentencePieceTokenizer.train([*SENTENCES, "½ … m² ，「」 ﬁ e\u0301"], 100)


@pytest.fixture(scope="module")
def nfkc_pieces():
    return SentencePieceTokenizer.train(SENTENCES, 100, VocabularyOptions(normalization="nfkc"))


@pytest.fixture(scope="module")
def unigram_bytes():
    options = VocabularyOptions("unigram", byte_fallback=True, split_digits=True, symbols=("<ph1>", "a b", "<2de>"))
    return SentencePieceTokenizer.train(SENTENCES, 320, options)


@pytest.fixture(scope="module")
def separate():
    """Tokenizer with one vocabulary for each side. The source vocabulary has byte fallback."""
    german = ["Das Tier hat 23 Worte geschrieben .", "Es geht , nicht wahr ?"] * 3
    return MarianTokenizer.join(
        SentencePieceTokenizer.train(SENTENCES, 320, VocabularyOptions(byte_fallback=True)),
        SentencePieceTokenizer.train(german, 40),
    )


@pytest.fixture(scope="module")
def russian():
    """Tokenizer with one vocabulary for each side, neither of which contains Latin letters."""
    one = SentencePieceTokenizer.train(["кот сидит на коврике", "две собаки бегут по снегу"], 40)
    return MarianTokenizer.join(one, one)


@pytest.fixture(scope="module")
def symbols():
    return SymbolTokenizer(["a", "b", "日本", "«"])


@pytest.fixture(scope="module")
def trees():
    from keras_transformer.parsing.linearize import linearize

    names = {symbol for text in TREES for symbol in linearize(tree_of(text))} | {"XX", "(TOP", ")TOP"}
    return TreeTokenizer.train(SENTENCES, names, 200)


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph_tokenizers") / "marian"
    write_marian(folder, seed=1)
    return read_marian(folder).tokenizer


@pytest.fixture(
    scope="module",
    params=["pieces", "nfkc_pieces", "unigram_bytes", "separate", "russian", "symbols", "trees", "marian"],
)
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def graph(tokenizer):
    """The graph tokenizer, compiled with `tf.function`, so that any code that needs eager execution fails."""
    module = graph_tokenizer(tokenizer)
    module.tokenize = tf.function(module.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    return module


def strings(tensor):
    return [text.decode() for text in tensor.numpy()]


def test_graph_tokenizer_encodes_awkward_texts_alike(tokenizer, graph):
    assert graph.tokenize(tf.constant(AWKWARD + SENTENCES)).to_list() == tokenizer.encode(AWKWARD + SENTENCES)
    assert graph.tokenize(tf.constant([], tf.string)).to_list() == []


@given(batch=st.lists(TEXTS, min_size=1, max_size=5))
def test_graph_tokenizer_encodes_any_text_alike(tokenizer, graph, batch):
    assert graph.tokenize(tf.constant(batch)).to_list() == tokenizer.encode(batch)


@given(draw=st.data())
def test_graph_tokenizer_decodes_any_ids_alike(tokenizer, graph, draw):
    ids = draw.draw(st.lists(st.integers(len(SPECIAL) - 1, tokenizer.vocab_size - 1)))
    assert strings(graph.detokenize(tf.ragged.constant([ids, []], dtype=tf.int32)))[0] == super_decode(tokenizer, ids)


def super_decode(tokenizer, ids):
    """Decode ids to text. With the tokenizer of a parser, decode them as subwords of a sentence, not as a tree."""
    if tokenizer.constraint:
        return SentencePieceTokenizer.decode(tokenizer, [ids])[0]
    return tokenizer.decode_outputs([""], [ids])[0]


@given(sentence=TEXTS, seed=st.integers(0, 2**32 - 1))
@example(sentence="It works .", seed=1)
def test_graph_tokenizer_writes_trees_alike(trees, sentence, seed):
    words, rng = split_words(sentence), np.random.default_rng(seed)
    rows = [random_tree(trees.grammar, len(words), rng) if words else [], []]
    found = graph_tokenizer(trees).decode_outputs([sentence] * 2, tf.ragged.constant(rows, dtype=tf.int32))
    assert strings(found) == trees.decode_outputs([sentence] * 2, rows)
    if words:
        assert graph_tokenizer(trees).tokenize_targets(found[:1]).to_list() == [rows[0]]


def random_tree(grammar, words, rng):
    """Return the ids of a random tree over `words` words, without EOS."""
    ids, limit = [], 4 * words + 20
    while True:
        allowed = np.flatnonzero(grammar.allowed(ids, words, limit))
        if list(allowed) == [grammar.eos]:
            return ids
        kinds = grammar.kinds[allowed]
        weights = np.select([kinds == OPEN, kinds == CLOSE, kinds == TAG], [0.3, 3.0, 1.0], 0.0)
        ids.append(int(rng.choice(allowed, p=weights / weights.sum())))


def test_graph_tokenizer_encodes_target_trees_alike(trees):
    texts = [*TREES, " (S\n (NP (PRP It) )\t(VP(VBZ works)) ) ", "(S (UNKNOWN It))", "( (S (PRP It)))", ""]
    graph = graph_tokenizer(trees)
    assert graph.tokenize_targets(texts).to_list() == trees.encode_targets(texts)


NO_TREES = [
    "(S (NN a)", "(S (NN a)))", "(NN a) (NN b)", "(S (NN a)) (S (NN b))", "a", ") (S (NN a)", "(S (NN a b))", "(S)",
    "()", "(S word (NN a))", "(S (NN a) word)", "(S ())", "(S (NP) (NN a))", "(S (NP NN VB))",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_TREES)
def test_graph_tokenizer_rejects_invalid_trees(trees, text):
    with pytest.raises(UserError):
        trees.encode_targets([text])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be one constituency tree"):
        graph_tokenizer(trees).tokenize_targets([TREES[0], text])


def test_separate_vocabularies_have_same_target_ids(separate):
    texts = [*AWKWARD, *SENTENCES]
    assert graph_tokenizer(separate).tokenize_targets(texts).to_list() == separate.encode_targets(texts)


def test_loaded_graph_keeps_both_models_apart(tmp_path, separate):
    module, graph = tf.Module(), graph_tokenizer(separate)
    module.graph, texts = graph, tf.TensorSpec([None], tf.string)
    module.encode = tf.function(lambda batch: graph.tokenize(batch).to_tensor(), input_signature=[texts])
    module.restore = tf.function(lambda batch: graph.detokenize(graph.tokenize_targets(batch)), input_signature=[texts])
    tf.saved_model.save(module, str(tmp_path))
    loaded, german = tf.saved_model.load(str(tmp_path)), "Das Tier hat 23 Worte geschrieben ."
    assert strings(loaded.restore([german])) == [german]
    assert loaded.encode(SENTENCES[:1]).numpy().tolist() == separate.encode(SENTENCES[:1])
