"""Tests of attention maps for pieces and words, and of their pages and figures."""

import base64
import contextlib
import dataclasses
import functools
import json
import re
import warnings
import xml.etree.ElementTree

import keras
import numpy as np
import pytest
from helpers.attention_maps import random_maps
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, UNK
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.data.tokenizers.word_pieces import ALWAYS, WordPieceTokenizer
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.visualization.attention import KINDS, Tokens, attention_page, inline
from keras_transformer.visualization.attention_figures import FIGURES, draw_figure
from keras_transformer.visualization.curves import draw_curves
from keras_transformer.visualization.plots import save

TEXTS = ["the small dog sees a cat .", "der kleine Hund sieht eine Katze .", "a </script><b>cat</b> & the dog", "dogs"]
SMALL = kt.HParams(num_layers=2, d_model=16, d_ff=32, num_heads=2, beam_size=2, extra_length=4, max_length=64)

pytestmark = pytest.mark.usefixtures("eager_module")


@functools.cache
def translator(**changes):
    """Return a translator with random weights that are large enough for peaked distributions."""
    tokenizer, rng = SentencePieceTokenizer.train(TEXTS * 5, 60), np.random.default_rng(1)
    model = kt.Transformer(tokenizer.vocab_size, SMALL.replace(**changes))
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.4, size=variable.shape))
    return kt.Translator(model, tokenizer, model.hparams)


def test_attention_maps_are_model_weights():
    one = translator()
    text = "the dog sees dogs ."
    maps = one.attention(text)
    best = one.translate([text], alignments=True)[0][0]
    pieces = one.tokenizer.pieces
    ids = one.tokenizer.encode([text])[0]
    assert maps.source.labels == tuple(pieces([*ids, EOS])) and maps.target.labels == tuple(pieces(best.tokens))
    assert maps.given.labels == tuple(pieces([BOS, *best.tokens[:-1]]))
    assert (maps.source_text, maps.target_text) == (text, best.text)
    np.testing.assert_allclose(maps.cross[-1].mean(axis=0), best.alignment, atol=1e-5)
    n, m = len(ids) + 1, len(best.tokens)
    assert [maps.weights(kind).shape for kind in KINDS] == [(2, 2, n, n), (2, 2, m, m), (2, 2, m, n)]
    assert np.all(np.triu(maps.decoder, 1) == 0)
    for kind in KINDS:
        np.testing.assert_allclose(maps.weights(kind).sum(axis=-1), 1, atol=1e-5)
    # Compare with attention weights computed directly by the first encoder layer.
    layer = one.model.encoder.layers[0].self_attention
    x = one.model._embed(np.array([[*ids, EOS]], "int32"))
    _, weights = layer.attend(layer.project_query(x), *layer.project_memory(x))
    np.testing.assert_allclose(maps.encoder[0], np.asarray(weights)[0], atol=1e-5)


def test_attention_target_may_be_text_or_ids():
    one = translator()
    target = "der kleine Hund"
    ids = [*one.tokenizer.encode([target])[0], EOS]
    by_text, by_ids = one.attention("the dog", target), one.attention("the dog", ids)
    assert by_text.target_text == by_ids.target_text == target
    for kind in KINDS:
        np.testing.assert_array_equal(by_text.weights(kind), by_ids.weights(kind))
    with pytest.raises(kt.UserError, match="a blank text has no attention"):
        one.attention("  ")


def test_restricted_attention_maps_cover_all_pairs():
    maps = translator(encoder_attention="restricted", attention_window=3).attention(
        "the small dog sees a cat .", "Hund"
    )
    near = np.abs(np.subtract.outer(*[np.arange(len(maps.source.labels))] * 2)) <= 1
    assert len(near) > 5 and np.all(maps.encoder[..., ~near] == 0) and np.all(maps.encoder[..., near] > 0)


def test_words_join_pieces():
    tokenizer = SentencePieceTokenizer.train(TEXTS * 5, 60)
    ids = [BOS, *tokenizer.encode(["the cats zzz"])[0], EOS]
    words, word_of = tokenizer.words(ids)
    assert words[0] == "<s>" and words[-1] == "</s>" and len(words) == 5 and words[1:3] == ["the", "cats"]
    assert list(word_of) == sorted(word_of) and set(word_of) == set(range(5))
    assert SymbolTokenizer("AB").words([BOS, 4, 5, UNK, EOS])[0] == ["<s>", "A", "B", "<unk>", "</s>"]
    pieces = WordPieceTokenizer([*ALWAYS, "▁the", "▁c", "a", "t", "s", "."])
    assert pieces.words([BOS, *pieces.encode(["the cats."])[0], EOS])[0] == ["<s>", "the", "cats.", "</s>"]
    trees = TreeTokenizer.train(TEXTS * 5, {"(S", ")S", "NN"}, 80)
    symbols = trees.encode_targets(["(S (NN dog) (NN cat))"])[0]
    assert trees.words([*symbols, EOS])[0] == ["(S", "NN", "NN", ")S", "</s>"]


def test_words_of_unspaced_scripts_are_pieces():
    new = ["▁", "我", "喜欢", "▁Py", "thon", "编", "。", "▁ไทย"]
    tokenizer = WordPieceTokenizer([*ALWAYS, *(piece for piece in new if piece not in ALWAYS)])
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    for order, words, word_of in (
        (["▁", "我", "喜欢", "▁Py", "thon", "编", "。"], ["我", "喜欢", "Python", "编", "。"], [0, 0, 1, 2, 2, 3, 4]),
        (["▁", "我", "thon", "thon", "喜欢", "▁ไทย"], ["我", "thonthon", "喜欢", "ไทย"], [0, 0, 1, 1, 2, 3]),
    ):
        found, numbers = tokenizer.words([pieces.index(piece) for piece in order])
        assert found == words and list(numbers) == word_of


counts = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(counts, counts, st.integers(0, 2**31))
def test_merged_maps_average_queries_and_sum_keys(source, target, seed):
    maps = random_maps(source, target, seed)
    merged = maps.merged()
    for kind in KINDS:
        queries, keys = maps.sides(kind)
        found, weights = merged.weights(kind), maps.weights(kind)
        np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)
        for i in range(len(queries.words)):
            for j in range(len(keys.words)):
                part = weights[:, :, queries.word_of == i][..., keys.word_of == j]
                np.testing.assert_allclose(found[:, :, i, j], part.sum(axis=-1).mean(axis=-1), atol=1e-6)
        assert [tokens.labels for tokens in merged.sides(kind)] == [queries.words, keys.words]
    again = merged.merged()
    assert all(np.allclose(again.weights(kind), merged.weights(kind), atol=1e-6) for kind in KINDS)


def shown(page):
    """Return the JSON data in the script of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_attention_page_holds_all_weights_and_no_links():
    maps = random_maps([1, 3], [2])
    data = shown(attention_page(maps, "decoder", layer=0, heads=[2], pieces=True))
    assert data["chosen"] == {"map": 1, "layer": 0, "heads": [2], "form": "pieces"}
    for kind, of_kind in zip(KINDS, data["maps"]):
        for name, expected in (("pieces", maps), ("words", maps.merged())):
            form, weights = of_kind["forms"][name], expected.weights(kind)
            assert (form["layers"], form["heads"]) == weights.shape[:2]
            assert [tuple(form[side]) for side in ("queries", "keys")] == [t.labels for t in expected.sides(kind)]
            values = np.frombuffer(base64.b64decode(form["weights"]), "uint8").reshape(weights.shape)
            np.testing.assert_allclose(values / 255, weights, atol=0.5 / 255 + 1e-6)
    page = maps.page()
    assert shown(page)["chosen"] == {"map": 2, "layer": 0, "heads": [0, 1, 2], "form": "words"}
    assert not re.search(r"(src|href)\s*=|https?:(?!//www.w3.org)|@import|url\(", page)


def test_attention_page_escapes_texts():
    one = translator()
    text = "a </script><b>cat</b> & the dog"
    page = attention_page(one.attention(text, "<!-- <script> -->"))
    assert page.count("</script>") == 2 and "<b>" not in page and "<!--" not in page
    assert shown(page)["maps"][0]["forms"]["words"]["queries"] == list(one.attention(text, "x").merged().source.labels)
    frame = inline(one.attention(text, "x"))
    assert frame.count("<") == 2 and frame.startswith("<iframe ") and frame.endswith("></iframe>")
    assert one.attention(text, "x")._repr_html_() == frame


@pytest.mark.parametrize("number", FIGURES)
def test_figures_draw_all_visible_weights(number):
    pytest.importorskip("matplotlib")
    maps = random_maps([2, 1, 1, 2], [1, 2]).merged()
    weights = maps.encoder[0]
    figure = draw_figure(number, maps, heads=[2, 0], word="3")
    lines = [axes.collections[0] for axes in figure.axes]
    drawn = {3: [weights[[2, 0], 2]], 4: [weights[[2]], weights[[2, 0], 2]], 5: [weights[[2]], weights[[0]]]}[number]
    assert [len(one.get_segments()) for one in lines] == [int((part >= 0.01).sum()) for part in drawn]
    for one, part in zip(lines, drawn):
        np.testing.assert_allclose(np.sort(one.get_colors()[:, 3]), np.sort(part[part >= 0.01]), atol=1e-6)
    for axes in figure.axes:
        texts = [text.get_text() for text in axes.texts]
        assert texts[: len(maps.source.labels)] == list(maps.source.labels)
        assert texts[-1].startswith("encoder self-attention, layer 1, head")


@pytest.mark.parametrize("kind", KINDS)
def test_figure_title_names_attention_and_fits(kind):
    pytest.importorskip("matplotlib")
    figure = draw_figure(3, random_maps([1], [1]), kind, layer=1)
    title = figure.axes[0].texts[-1]
    expected = {"cross": "cross-attention"}.get(kind, f"{kind} self-attention")
    assert title.get_text() == f"{expected}, layer 2, heads 1, 2, 3"
    figure.canvas.draw()
    assert title.get_window_extent().x1 <= figure.bbox.x1


def figure_of(label):
    maps = random_maps([1, 1], [1])
    labels = (label, *maps.source.labels[1:])
    return draw_figure(3, dataclasses.replace(maps, source=dataclasses.replace(maps.source, labels=labels)))


@pytest.mark.parametrize("label", ["喜欢", "日本語", "😀", "القط"])
def test_save_draws_all_characters_or_names_font(tmp_path, label):
    """Accept both a figure and an error, because installed fonts differ between machines. Treat warnings as errors."""
    pytest.importorskip("matplotlib")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            save(figure_of(label), tmp_path / "figure.png")
    except kt.UserError as error:
        assert str(error).startswith("no installed font can draw ") and not (tmp_path / "figure.png").exists()
    else:
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_save_without_fonts_rejects_png_and_writes_svg(tmp_path, monkeypatch):
    font_manager = pytest.importorskip("matplotlib.font_manager")
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    with pytest.raises(kt.UserError, match="no installed font can draw '喜欢'.*fonts-noto-cjk"):
        save(figure_of("喜欢"), tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
    save(figure_of("喜欢"), tmp_path / "figure.svg")
    assert "喜欢" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_save_adds_font_with_needed_characters(tmp_path, monkeypatch):
    font_manager = pytest.importorskip("matplotlib.font_manager")
    path = font_manager.findfont("STIXGeneral")  # part of Matplotlib, with characters that DejaVu Sans lacks
    lacking = set(font_manager.get_font(path).get_charmap()) - set(
        font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    )
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), path])
    figure = figure_of(next(chr(code) for code in sorted(lacking) if chr(code).isalpha()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, tmp_path / "figure.png")
    assert all("STIXGeneral" in text.get_fontfamily() for text in figure.axes[0].texts)


@pytest.mark.parametrize("value", [1.0000001, float("nan")])
@pytest.mark.parametrize("number", FIGURES)
def test_weights_outside_0_to_1_are_drawn(number, value):
    """Draw weights above 1, which rounding can cause, and NaN, which a diverged model can return."""
    pytest.importorskip("matplotlib")
    maps = random_maps([1, 1], [1])
    for kind in KINDS:
        maps.weights(kind)[:] = value
    draw_figure(number, maps, heads=[0, 1]).canvas.draw()
    data = shown(attention_page(maps))["maps"][0]["forms"]["pieces"]
    assert set(base64.b64decode(data["weights"])) == {255 if value > 1 else 0}
    assert maps.merged().encoder.max() <= 1 or np.isnan(value)


def test_attention_without_weights_is_reported(monkeypatch):
    one = translator()
    monkeypatch.setattr(type(one.model), "recorded_attention", nothing_recorded)
    with pytest.raises(kt.UserError, match="does not compute weights for all pairs"):
        one.attention("the dog", "Hund")


@contextlib.contextmanager
def nothing_recorded(model):
    """Record no weights, as for a plug-in attention layer that does not call `on_weights`."""
    yield {kind: [] for kind in KINDS}


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (["the dog"], None, "source must be one text, got a list"),
        ("the dog", [4, 999], "must be less than the vocabulary size"),
    ],
)
def test_attention_rejects_lists_and_unknown_ids(source, target, said):
    with pytest.raises(kt.UserError, match=said):
        translator().attention(source, target)


def test_curves_do_not_render_run_names_as_formulas():
    pytest.importorskip("matplotlib")
    lines = {"train": {1: {"step": 1, "nll": 1.0, "learning_rate": 1e-3, "tokens_per_second": 5.0}}, "validation": {}}
    runs = {"runs/$a_b^{$": lines, "_hidden": {**lines, "validation": {1: {"nll": 1.0, "score": 2.0}}}}
    figure = draw_curves(runs)
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(runs)
    draw_curves({"runs/$a_b^{$": lines}).canvas.draw()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"number": 5, "heads": [0, 1, 2]}, "figure 5 needs exactly two heads, got 3"),
        ({"number": 6}, "number must be one of 3, 4, 5, got 6"),
        ({"layer": 2}, "layer must be from 1 to 2, got 3"),
        ({"heads": [0, 3]}, "head must be from 1 to 3, got 4"),
        ({"word": "dog"}, "word must be a number from 1 to 2 or one of s_0 s_1, got 'dog'"),
        ({"word": "0"}, "got '0'"),
        ({"word": "3"}, "got '3'"),
    ],
)
def test_draw_figure_rejects_wrong_arguments(arguments, said):
    with pytest.raises(kt.UserError, match=re.escape(said)):
        draw_figure(**{"number": 3, "maps": random_maps([1], [1]).merged(), **arguments})


def test_find_ignores_case_and_punctuation():
    tokens = Tokens(("A", "Dog.", "a", "2", "▁cat"), (), np.zeros(0))
    words = ("a", "A", "Dog", "dog", "2", "1", "4", "Cat", "DOG")
    assert [tokens.find(word) for word in words] == [2, 0, 1, 1, 3, 0, 3, 4, 1]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="commands are tested on TensorFlow")
def test_visualize_writes_page_figures_and_curves(call, home, tmp_path):
    pytest.importorskip("matplotlib")
    text = ["--run", home.run, "--text", "s3 s1 s2"]
    lines = call("visualize", *text, "--output_dir", tmp_path).succeeded()
    assert lines[-1] == f"{tmp_path / 'attention.html'}: open it in a browser"
    page = (tmp_path / "attention.html").read_text()
    assert shown(page)["maps"][0]["forms"]["words"]["queries"] == ["s3", "s1", "s2", "</s>"]
    for arguments, name in (
        ((*text, "--figure=3", "--attention=cross", "--target", "s2 s1 s3", "--word=s2"), "figure-3.png"),
        ((*text, "--target=s2", "--figure=4", "--format=svg", "--heads=2,1"), "figure-4.svg"),
        (("--curves", home.run, "--over=flops"), "curves.png"),
        (("--curves", home.run, "--curves", home.run, "--format=svg"), "curves.svg"),
    ):
        assert call("visualize", *arguments, "--output_dir", tmp_path).succeeded() == [str(tmp_path / name)]
        written = (tmp_path / name).read_bytes()
        if name.endswith("png"):
            assert written.startswith(b"\x89PNG")
        else:
            assert xml.etree.ElementTree.fromstring(written).tag.endswith("svg")
            call("visualize", *arguments, "--output_dir", tmp_path).succeeded()
            assert (tmp_path / name).read_bytes() == written
    assert "validation" in (tmp_path / "curves.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "visualize needs --run and --text"),
        (("--run=RUN",), "visualize needs --run and --text"),
        (("--run=RUN", "--text=1", "--word=1"), "--word needs --figure=3 or --figure=4"),
        (("--run=RUN", "--text=1", "--over=step"), "--over needs --curves"),
        (
            ("--run=RUN", "--text=1", "--format=svg"),
            "--format needs --figure or --curves; without them, the output is an HTML page",
        ),
        (("--run=RUN", "--text=1", "--heads=0"), "--heads: must be from 1 to 1000000000, got '0'"),
        (("--run=RUN", "--text=1", "--target=1", "--layer=9"), "layer must be from 1 to 1, got 9"),
        (("--run=RUN", "--text=1", "--target=1", "--heads=3", "--figure=5"), "head must be from 1 to 2, got 3"),
        (("--run=RUN", "--text=  "), "--text must not be empty"),
        (("--run=nowhere", "--text=1"), "nowhere is not a run directory"),
        (("--curves=RUN", "--text=1"), "--text cannot be combined with --curves"),
        (("--curves=nowhere",), "nowhere is not a run directory"),
    ],
)
def test_visualize_rejects_wrong_flags(call, home, tmp_path, arguments, said):
    arguments = [argument.replace("RUN", str(home.run)) for argument in arguments]
    call("visualize", *arguments, "--output_dir", tmp_path / "new").refused(said)
    assert not (tmp_path / "new").exists()
