"""Tests of BLEU for languages that do not separate words with spaces."""

import dataclasses
import importlib.util
import urllib.error

import pytest
import sacrebleu

from keras_transformer.metrics import bleu
from keras_transformer.metrics.bleu import sacre_bleu, tokenizer_for
from keras_transformer.metrics.significance import paired_bootstrap
from keras_transformer.tasks.problem import load_problem
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError

OUTPUTS = ["我今天去北京大学图书馆看书。", "他们在公园里散步。", "这本书非常有意思。", "明天的天气会更好。"]
REFERENCES = ["我今天去北京大学图书馆读书。", "他们正在公园里散步。", "这本书很有意思。", "明天天气会更好。"]


@dataclasses.dataclass(kw_only=True)
class Chinese(TranslationProblem):
    source, target = "en", "zh_CN"


Backwards = Chinese.reverse_class("chinese_rev")


@pytest.fixture(autouse=True)
def no_cache():
    tokenizer_for.cache_clear()
    yield
    tokenizer_for.cache_clear()


def test_bleu_of_chinese_uses_characters():
    (score,) = Chinese().score(OUTPUTS, REFERENCES)
    assert score.value == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], tokenize="zh").score > 50
    assert "tok:zh" in score.signature
    assert sacre_bleu(OUTPUTS, REFERENCES).value < 1  # the tokenizer 13a sees one word per sentence
    lowercase = Chinese().all_scores(OUTPUTS, REFERENCES)[1]
    assert lowercase.name == "lowercase BLEU" and "tok:zh" in lowercase.signature


def test_bleu_tokenizer_depends_on_direction():
    assert Chinese().sacrebleu_tokenizer == "zh"
    assert Backwards().output_language == "en" and Backwards().sacrebleu_tokenizer == "13a"


@pytest.mark.parametrize(
    "language, tokenize",
    [
        *((language, "zh") for language in ("zh-TW", "ZH", "zho_Hans", "cmn")),
        *((language, "char") for language in ("th", "km", "mya")),
        *((language, "13a") for language in ("de", "ar", "thv")),
    ],
)
def test_bleu_tokenizer_by_language(language, tokenize):
    assert tokenizer_for(language) == tokenize


@pytest.mark.parametrize("language, extra", [("ja", "ja"), ("ko_KR", "ko"), ("jpn_Jpan", "ja"), ("kor", "ko")])
def test_bleu_tokenizer_names_missing_package(language, extra, caplog, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tokenizer_for(language) == tokenizer_for(language) == "char"
    assert len(caplog.records) == 1 and f"pip install 'sacrebleu[{extra}]'" in caplog.text
    with pytest.raises(UserError, match=rf"pip install 'sacrebleu\[{extra}\]'"):
        sacre_bleu(OUTPUTS, REFERENCES, tokenize=f"{extra}-mecab")


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_bleu_tokenizer_uses_installed_package(language, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert tokenizer_for(language) == f"{language}-mecab"


def test_bleu_tokenizer_setting_overrides_language(tmp_path):
    (tmp_path / "train.en").touch()
    automatic, chosen = (
        load_problem("parallel_text", raw_dir=tmp_path, target="zh", bleu_tokenizer=value) for value in (None, "char")
    )
    assert (automatic.sacrebleu_tokenizer, chosen.sacrebleu_tokenizer) == ("zh", "char")
    assert automatic.prepared_dir == chosen.prepared_dir
    assert "tok:char" in chosen.score(OUTPUTS, REFERENCES)[0].signature
    with pytest.raises(UserError, match="unknown bleu_tokenizer 'chars': did you mean char"):
        load_problem("parallel_text", raw_dir=tmp_path, bleu_tokenizer="chars")


def test_missing_tokenizer_is_reported_before_training(monkeypatch, tmp_path, call):
    def download(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(sacrebleu.metrics, "BLEU", download)
    message = "sacreBLEU cannot download its tokenizer flores200 (<urlopen error no network>). Connect"
    monkeypatch.chdir(tmp_path)
    flags = "--problem=toy_ende", "--hparams=toy", "--set=problem.bleu_tokenizer=flores200"
    call("train", *flags).refused(message)
    assert not list(tmp_path.iterdir())
    for name in ("train.de", "train.fr"):
        (tmp_path / name).touch()
    several = load_problem("multilingual_text", raw_dir=tmp_path, directions="de-fr,fr-de", bleu_tokenizer="flores200")
    with pytest.raises(UserError, match="tokenizer flores200"):
        several.check_metric("score")


def test_bleu_tokenizer_choices_match_sacrebleu():
    assert set(bleu.TOKENIZERS) | {"spm"} == set(sacrebleu.metrics.BLEU.TOKENIZERS)


def test_bootstrap_uses_bleu_tokenizer():
    found = paired_bootstrap("sacreBLEU", OUTPUTS, REFERENCES, REFERENCES, tokenize="zh")
    assert "tok:zh" in found.signature
    assert found.system.score == pytest.approx(Chinese().score(OUTPUTS, REFERENCES)[0].value)
