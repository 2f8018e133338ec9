"""Tables of parsers in results.md."""

from pathlib import Path

from pages.tables import changes_of, table

PARSEVAL = {
    "F1": "{f1:,.2f}", "F1 of all sentences": "{f1_of_all_sentences:,.2f}", "recall": "{recall:,.2f}",
    "precision": "{precision:,.2f}", "complete match": "{complete_match:,.2f}", "tags": "{tagging_accuracy:,.2f}",
    "sentences": "{sentences:,}", "errors": "{errors:,}",
}  # fmt: skip


def parsers(baselines, parts):
    """Return a table of the F1 of parsers on each part of a test split. In each part, baselines come first."""
    own = [{**row, "part": Path(row["gold"]).stem, "parser": Path(row["test"]).parent.name} for row in parts]
    rows = sorted([*baselines, *own], key=lambda row: row["part"])
    return table(rows, {"treebank": "{part}", "parser": "{parser}", **PARSEVAL})


def comparisons(rows):
    """Return a table of paired bootstrap tests: F1 of all sentences of two parsers, with 95% confidence intervals."""

    def score(name):
        return lambda row: "{score:.2f} ± {interval:.2f}".format(**row["comparison"][name])

    return table(rows, {
        "treebank": lambda row: Path(row["gold"]).stem, "parser": lambda row: Path(row["test"]).parent.name,
        "F1 of all sentences": score("system"),
        "other parser": lambda row: Path(row["comparison"]["file"]).parent.name,
        "other parser's F1": score("other"), "difference": "{comparison[difference]:+.2f}",
        "p": "{comparison[p_value]:.3f}",
    })  # fmt: skip


def evaluations(rows):
    """Return a code block with the `evaluate` commands that added the rows."""
    programs = dict.fromkeys(" ".join(row["command"]).replace(".py", "", 1) for row in rows)
    return "\n".join(f"    python -m keras_transformer.{program}" for program in programs)


def parser_errors(rows):
    """Return tables of scores by sentence length and by label, for the rows that contain such scores."""
    figures = {name: PARSEVAL[name] for name in ("F1", "recall", "precision")}
    more = {name: PARSEVAL[name] for name in ("complete match", "tags")}
    parts = []
    for row in filter(lambda row: "by_length" in row, rows):
        lengths = [{"words": words, **scores} for words, scores in row["by_length"].items()]
        labels = [{"label": label, **scores} for label, scores in row["by_label"].items() if scores["gold"] >= 40]
        counts = {name: PARSEVAL[name] for name in ("sentences", "errors")}
        parts += [
            f"#### {Path(row['gold']).stem}", table(lengths, {"words": "{words}", **counts, **figures, **more}),
            table(labels, {"label": "{label}", "gold": "{gold:,}", "predicted": "{test:,}", **figures}),
        ]  # fmt: skip
    return "\n\n".join(parts)


def parsing_speed(rows):
    """Return a table of parsing speed."""
    return table(rows, {
        "sentences": "{sentences:,} of {problem}", "words": "{words:,}", "beam": "{beam_size}",
        "constraint": "{constraint}", "sentences/s": "{sentences_per_second:.2f}", "whole trees": "{whole_trees:,}",
        "machine": "{machine}",
    })  # fmt: skip


def parsing_variants(rows):
    """Return a table of the validation scores of short runs. Each run differs from the first in one hyperparameter."""
    same = changes_of(rows[0])

    def change(row):
        return ", ".join(f"`{name}={value}`" for name, value in changes_of(row).items() if name not in same)

    before, after = ("F1 of all sentences", "F1"), ("recall", "precision", "tags")
    return table(rows, {
        "change": lambda row: change(row) or "–", **{name: PARSEVAL[name] for name in before},
        "errors": "{error_sentences}", **{name: PARSEVAL[name] for name in after}, "perplexity": "{perplexity:.3f}",
    })  # fmt: skip
