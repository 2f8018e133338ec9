"""BLEU and chrF by sacreBLEU, always with the signature that says which BLEU it is; and exact match."""

import dataclasses

# Name: sacreBLEU's class and its arguments. `force` only silences a warning about tokenised text, which there may be.
SACREBLEU = {
    "sacreBLEU": ("BLEU", {"force": True}),
    "lowercase BLEU": ("BLEU", {"lowercase": True, "force": True}),
    "tokenized BLEU": ("BLEU", {"tokenize": "none", "force": True}),
    "chrF": ("CHRF", {}),
}
EXACT_MATCH = "exact match"


@dataclasses.dataclass(frozen=True)
class Score:
    """A figure, a float, or a count, an int, with the signature of its computation."""

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name} = {self.value:,}" if isinstance(self.value, int) else f"{self.name} = {self.value:.2f}"


def sacre_bleu(hypotheses, references):
    """Returns the cased sacreBLEU, 0 to 100, of detokenised texts (13a tokenisation inside)."""
    return _score("sacreBLEU", hypotheses, references)


def lowercase_bleu(hypotheses, references):
    """Returns sacreBLEU, 0 to 100, of texts that are lower-cased first."""
    return _score("lowercase BLEU", hypotheses, references)


def tokenized_bleu(hypotheses, references):
    """Returns BLEU on the texts' own tokens, which spaces divide; what papers on tokenised corpora report."""
    return _score("tokenized BLEU", hypotheses, references)


def chrf(hypotheses, references):
    """Returns chrF2, 0 to 100: the F-score, recall twice as heavy, of character n-grams up to 6; spaces left out."""
    return _score("chrF", hypotheses, references)


def exact_match(hypotheses, references):
    """Returns the share of outputs that equal their reference, in per cent."""
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score(EXACT_MATCH, 100 * same / len(references), "share of equal lines, %")


def sacrebleu_metric(name):
    """Returns sacreBLEU's own metric for a name in `SACREBLEU`."""
    import sacrebleu.metrics

    kind, arguments = SACREBLEU[name]
    return getattr(sacrebleu.metrics, kind)(**arguments)


def _score(name, hypotheses, references):
    metric = sacrebleu_metric(name)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, score, str(metric.get_signature()))
