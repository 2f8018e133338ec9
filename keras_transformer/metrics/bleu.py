"""BLEU by sacreBLEU, always with the signature that says which BLEU it is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Score:
    """A figure and what it was computed by."""

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name} = {self.value:.2f}"


def sacre_bleu(hypotheses, references):
    """Returns the cased sacreBLEU, 0 to 100, of detokenised texts (13a tokenisation inside)."""
    return _bleu("sacreBLEU", hypotheses, references, force=True)  # no warning about tokenised text: it may be


def tokenized_bleu(hypotheses, references):
    """Returns BLEU on the texts' own tokens, which spaces divide; what papers on tokenised corpora report."""
    return _bleu("tokenized BLEU", hypotheses, references, tokenize="none", force=True)


def exact_match(hypotheses, references):
    """Returns the share of outputs that equal their reference, in per cent."""
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score("exact match", 100 * same / len(references), "share of equal lines, %")


def _bleu(name, hypotheses, references, **arguments):
    from sacrebleu.metrics import BLEU

    bleu = BLEU(**arguments)
    score = bleu.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, score, str(bleu.get_signature()))
