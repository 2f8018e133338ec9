"""Tests of converting Marian models of Hugging Face Transformers to runs and back."""

import json
import shutil
import sys

import numpy as np
import pytest
from helpers.languages import toy_pairs
from helpers.marian import marian_logits, write_marian

import keras_transformer as kt
from keras_transformer import convert as command
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.exports.huggingface import export_huggingface
from keras_transformer.pretrained.huggingface import locate, read_marian
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("eager_module")


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "marian"
    write_marian(folder, seed=5)
    return folder


@pytest.mark.backend
@pytest.mark.parametrize(
    "changes", [{}, {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 2}, {"bos": True}]
)
def test_read_marian_computes_the_same_logits(tmp_path, fresh_seed, changes):
    config, weights = write_marian(tmp_path / "marian", fresh_seed, **changes)
    pretrained = read_marian(tmp_path / "marian")
    vocabulary = json.loads((tmp_path / "marian" / "vocab.json").read_text())
    tokenizer = pretrained.tokenizer
    shared = [index for index in range(tokenizer.vocab_size) if index != BOS or changes.get("bos")]
    there = [vocabulary[tokenizer.pieces([index])[0]] for index in shared]
    rng = np.random.default_rng(fresh_seed)
    source, target = rng.integers(UNK, tokenizer.vocab_size, size=7), rng.integers(UNK, tokenizer.vocab_size, size=5)
    old = dict(zip(shared, there))
    ids = [old[index] for index in source], [config["decoder_start_token_id"], *(old[index] for index in target)]
    expected = marian_logits(weights, config, *map(np.array, ids))
    found = np.asarray(pretrained.build_model()((source[None], np.r_[BOS, target][None])))[0]
    np.testing.assert_allclose(found[:, shared], expected[:, there], atol=1e-4)
    if not changes.get("bos"):
        assert (found[:, BOS] < -50).all()
        # Label smoothing averages over all logits, so the bias of BOS must not dominate the loss.
        labels = np.array([[*target, EOS]])
        loss = float(kt.SmoothedCrossEntropy(0.1)(labels, found[None]))
        assert loss < float(kt.SmoothedCrossEntropy(0.0)(labels, found[None])) + 10 / labels.size


@pytest.mark.backend
def test_search_steps_agree_with_teacher_forcing(marian, fresh_seed):
    pretrained = read_marian(marian)
    translator = kt.Translator(pretrained.build_model(), pretrained.tokenizer)
    texts = [source for source, _ in toy_pairs("tr", fresh_seed)[:5]]
    best = [found[0] for found in translator.translate(texts, beam_size=2, extra_length=8)]
    scored = translator.score(texts, [one.tokens for one in best])
    np.testing.assert_allclose(
        [one.log_probability for one in best], [one.log_probability for one in scored], rtol=1e-4, atol=1e-3
    )


def test_tokenizer_round_trip(marian, tmp_path):
    tokenizer = read_marian(marian).tokenizer
    assert tokenizer.pieces([PAD, EOS, BOS, UNK]) == ["<pad>", "</s>", "<s>", "<unk>"]
    targets = [target for _, target in toy_pairs("tr", seed=2)[:20]]
    assert tokenizer.decode(tokenizer.encode_targets(targets)) == targets
    sources = ["The red dog sees the house.", "The Ω"]
    plain, unknown = tokenizer.encode(sources)
    assert UNK not in plain and UNK in unknown
    code = tokenizer.encode([">>tr<< " + sources[0]])[0]
    assert tokenizer.pieces(code) == [">>tr<<", *tokenizer.pieces(plain)]
    tokenizer.save(tmp_path)
    copy = MarianTokenizer.from_bytes((tmp_path / tokenizer.file_name).read_bytes())
    assert copy.fingerprint == tokenizer.fingerprint and copy.encode(sources) == [plain, unknown]


def test_convert_makes_a_run(marian, tmp_path, capsys):
    command.main(["--from=huggingface", f"--model={marian}", f"--output_dir={tmp_path / 'run'}"])
    assert "keras_transformer.translate --run=" in capsys.readouterr().out
    run = Run.open(tmp_path / "run")
    assert (run.problem.input_language, run.problem.output_language) == ("en", "tr")
    assert (run.hparams.beam_size, run.hparams.alpha, run.hparams.max_length) == (6, 1.0, 64)
    pretrained = read_marian(marian)
    expected = kt.Translator(pretrained.build_model(), pretrained.tokenizer).translate("The dog sees the cat.", 1)
    assert kt.Translator.load(tmp_path / "run").translate("The dog sees the cat.", 1) == expected
    with pytest.raises(UserError, match="exists"):
        command.main(["--from=huggingface", f"--model={marian}", f"--output_dir={tmp_path / 'run'}"])


def test_convert_requires_languages(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"source_lang": "en"}')
    flags = ["--from=huggingface", f"--model={tmp_path / 'model'}", f"--output_dir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match="does not specify the target language. Add --set problem.target=CODE, for"):
        command.main(flags)
    command.main([*flags, "--set=problem.target=tr"])
    assert Run.open(tmp_path / "run").problem.output_language == "tr"


def test_convert_rejects_problem_with_tags(marian, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for language in ("en", "tr"):
        (corpus / f"test.en-tr.{language}").write_text("a\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"multilingual_text needs tags such as <2de>, which .*marian lacks\. Choose an"
    ):
        command.main(
            [
                "--from=huggingface", f"--model={marian}", f"--output_dir={tmp_path / 'run'}",
                "--problem=multilingual_text", f"--raw_dir={corpus}", "--set", "problem.directions=en-tr",
            ]
        )  # fmt: skip


def test_translate_takes_target_language(marian):
    pretrained = read_marian(marian)
    translator = kt.Translator(pretrained.build_model(), pretrained.tokenizer)
    text = "The dog sees the cat."
    assert translator.translate([text], to="tr") == translator.translate([f">>tr<< {text}"])
    assert translator.translate([">>tr<< "])[0][0].text == ""
    with pytest.raises(UserError, match="unknown language code 'tu'"):
        translator.translate([f">>tu<< {text}"])


def test_split_sentences_checks_only_the_start_of_a_text(marian):
    pytest.importorskip("sentencex")
    pretrained = read_marian(marian)
    translator = kt.Translator(pretrained.build_model(), pretrained.tokenizer)
    sentences = ["The dog.", ">>Ja<<, the dog said."]
    parts = translator.translate(sentences, 1, to="tr")
    ((joined,),) = translator.translate([" ".join(sentences)], 1, split_sentences="de", to="tr")
    assert joined.tokens == parts[0][0].tokens + parts[1][0].tokens
    assert translator.translate([" ".join(sentences)], 1, split_sentences="de")[0][0].text


def test_export_restores_the_weights(marian, tmp_path):
    """Check that a converted and exported model has the original weights and tokenizer."""
    command.main(["--from=huggingface", f"--model={marian}", f"--output_dir={tmp_path / 'run'}"])
    export_huggingface(Run.open(tmp_path / "run"), tmp_path / "again")
    first, second = read_marian(marian), read_marian(tmp_path / "again")
    for name, array in first.weights.items():
        np.testing.assert_array_equal(second.weights[name], array)
    assert second.tokenizer.to_bytes() == first.tokenizer.to_bytes()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "m2m_100"}, "model_type must be marian, got m2m_100"),
        ({"activation_function": "tanh"}, "activation_function must be one of swish, silu, relu, gelu, got tanh"),
        ({"normalize_before": True}, "normalize_before must be false, got true"),
        ({"activation_function": ["relu"]}, r"activation_function must be one of .*, got \['relu'\]"),
        ({"decoder_ffn_dim": 16}, "encoder_ffn_dim and decoder_ffn_dim must be equal, got 12 and 16"),
        ({"decoder_layers": None}, "decoder_layers must be an integer of at least 0, got null"),
        ({"d_model": "x"}, 'd_model must be an integer of at least 0, got "x"'),
        ({"eos_token_id": 900}, r"eos_token_id must be below vocab_size=\d+, got 900"),
        ({"dropout": "x"}, "dropout must be a number, got 'x'"),
        ({"vocab_size": 70}, "vocab_size=70 in config.json requires exactly one token for each id from 0 to 69"),
        ({"d_model": 16}, r"model.shared.weight must have shape .*, got \(\d+, 8\)"),
    ],
)
def test_read_marian_rejects_other_models(marian, tmp_path, changes, words):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((marian / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=words):
        read_marian(tmp_path)


def test_read_marian_names_missing_and_damaged_files(marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "source.spm").write_bytes(b"no model")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        read_marian(tmp_path)
    (tmp_path / "source.spm").write_bytes(b"")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        read_marian(tmp_path)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(UserError, match="has no source.spm"):
        read_marian(tmp_path)
    (tmp_path / "source.spm").write_bytes((marian / "source.spm").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        read_marian(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # a download from the hub excludes pytorch_model.bin
    with pytest.raises(UserError, match=r"save_pretrained, which writes model.safetensors.*--revision"):
        read_marian(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UserError, match="model_type must be marian, got t5"):
        read_marian(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="has no config.json"):
        read_marian(tmp_path)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("vocab.json", '{"a": "x", "b": 1}', "exactly one token for each id"),
        ("vocab.json", '{"a": null, "<unk>": [1]}', "exactly one token for each id"),
        ("tokenizer_config.json", '{"source_lang": 5}', "source_lang must be a string, got 5"),
        ("tokenizer_config.json", '{"target_lang": ["tr"]}', r'target_lang must be a string, got \["tr"\]'),
    ],
)
def test_read_marian_rejects_values_of_wrong_types(marian, tmp_path, name, content, words):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=words):
        read_marian(tmp_path)


def test_read_marian_accepts_generation_settings_without_values(marian, tmp_path):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"num_beams": null, "length_penalty": null}')
    hparams = read_marian(tmp_path).hparams
    assert (hparams.beam_size, hparams.alpha) == (1, 1.0)


def test_locate_names_what_is_missing(tmp_path, monkeypatch):
    assert locate(tmp_path) == tmp_path
    with pytest.raises(UserError, match=f"--revision needs a model on the hub, but {tmp_path} is a directory"):
        locate(tmp_path, "main")
    with pytest.raises(UserError, match="is not a directory"):
        locate(tmp_path / "nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'keras-transformer-toolkit\[huggingface\]'"):
        locate("user/model")


@pytest.mark.parametrize("message, reason", [("peer closed\nlater", "peer closed$"), ("", "HTTPError")])
def test_locate_names_a_dropped_connection(monkeypatch, message, reason):
    hub = pytest.importorskip("huggingface_hub")

    def drop(*arguments, **options):
        raise hub.errors.HTTPError(message)

    monkeypatch.setattr(hub, "snapshot_download", drop)
    with pytest.raises(UserError, match=f"cannot be downloaded from the Hugging Face Hub: {reason}"):
        locate("user/model")


def test_translator_from_pretrained(marian):
    translator = kt.Translator.from_pretrained(marian)
    assert translator.hparams.beam_size == 6
    assert translator.tokenizer.fingerprint == read_marian(marian).tokenizer.fingerprint
