"""BLEU as the paper reports it (Table 2): on Moses' tokens, with hyphenated compounds split.

The figures of 2017 were computed so (tensor2tensor's get_ende_bleu.sh): Unicode punctuation replaced, the Moses
tokenizer, "rich-text" as "rich ##AT##-##AT## text", then multi-bleu.perl. Splitting compounds makes more n-grams
match: such a figure lies above sacreBLEU's, and the two must not be compared.
"""

import re

from keras_transformer.metrics.bleu import Score
from keras_transformer.utils.errors import UserError

COMPOUND = re.compile(r"(\S)-(\S)")


def paper_bleu(hypotheses, references, language):
    """Return the paper's BLEU, 0 to 100, of detokenised texts.

    Args:
        hypotheses, references: Lists of texts.
        language: Code of their language, as Moses names it: it decides which words end in a period.

    Raises:
        UserError: sacremoses, which ports the Moses tokenizer, is not installed.
    """
    from sacrebleu.metrics import BLEU

    tokenize = moses_tokenizer(language)
    # multi-bleu.perl smooths nothing; `force` only silences the warning that the text is tokenised.
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    split = [[split_compounds(tokenize(text)) for text in texts] for texts in (hypotheses, references)]
    score = bleu.corpus_score(split[0], [split[1]]).score
    return Score("paper BLEU", score, f"{bleu.get_signature()}|moses:{_version()}|lang:{language}|compounds:split")


def moses_tokenizer(language):
    """Return the function from a text to its tokens, joined by spaces.

    Raises:
        UserError: sacremoses is not installed.
    """
    check_installed()
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return lambda text: tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True)


def split_compounds(tokens):
    """Return the tokens, joined by spaces, with every hyphen inside a token a token of its own."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens)


def check_installed():
    """Raise a `UserError` where sacremoses is missing."""
    try:
        import sacremoses  # noqa: F401
    except ImportError:
        raise UserError("the paper's BLEU needs the Moses tokenizer: pip install sacremoses") from None


def _version():
    import sacremoses

    return sacremoses.__version__
