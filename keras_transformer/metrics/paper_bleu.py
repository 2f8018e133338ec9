"""BLEU as the paper reports it (Table 2): on Moses tokens, with hyphenated compounds split.

The paper's scores come from tensor2tensor's script get_ende_bleu.sh. The script replaces Unicode punctuation, runs the
Moses tokenizer, turns "rich-text" into "rich ##AT##-##AT## text", and runs multi-bleu.perl. Splitting compounds makes
more n-grams match. The score is therefore higher than that of sacreBLEU and must not be compared with it.
"""

import re

from keras_transformer.metrics.bleu import Score
from keras_transformer.utils.errors import optional_import

COMPOUND = re.compile(r"(\S)-(\S)")


def paper_bleu(hypotheses, references, language):
    """Return BLEU as in the paper, 0 to 100, of detokenized texts.

    Args:
        hypotheses, references: Lists of texts.
        language: Language code of the texts. It selects Moses' list of abbreviations that end in a period.

    Raises:
        UserError: sacremoses, a port of the Moses tokenizer, is not installed.
    """
    from sacrebleu.metrics import BLEU

    tokenize = moses_tokenizer(language)
    # multi-bleu.perl applies no smoothing. `force` only silences a warning about tokenized text.
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    split = [[split_compounds(tokenize(text)) for text in texts] for texts in (hypotheses, references)]
    score = bleu.corpus_score(split[0], [split[1]]).score
    return Score("paper BLEU", score, f"{bleu.get_signature()}|moses:{_version()}|lang:{language}|compounds:split")


def moses_tokenizer(language):
    """Return a function that tokenizes a text and joins the tokens with spaces.

    Raises:
        UserError: sacremoses is not installed.
    """
    check_installed()
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return lambda text: tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True)


def split_compounds(tokens):
    """Turn each hyphen inside a token of a space-separated text into a separate token."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens)


def check_installed():
    """Raise a `UserError` if sacremoses is missing."""
    with optional_import("paper BLEU", "sacremoses", "moses"):
        import sacremoses  # noqa: F401


def _version():
    import sacremoses

    return sacremoses.__version__
