"""Sections of results.md about parsers: scores by treebank, errors, speed."""

from pathlib import Path

from pages.markdown import commands, head, line, table


def parsers(baselines, parts):
    """Return the F1 of parsers on parts of a test split, baselines first."""
    figures = {
        "f1": "F1", "f1_of_all_sentences": "F1 of all sentences", "recall": "recall", "precision": "precision",
        "complete_match": "complete match", "tagging_accuracy": "tags", "sentences": "sentences", "errors": "errors",
    }  # fmt: skip
    lines = [
        "## Parsers on each treebank\n",
        "F1 on the test split of `parsing_english`, in total and by treebank, as EVALB computes it. EVALB excludes",
        "error sentences, in which punctuation is tagged as a word, or a word as punctuation. The F1 of all sentences",
        "counts their brackets as unmatched; older rows lack it. There are two baselines",
        "(`benchmarks/parsing_baselines.py`): `right_branching` uses the most frequent label for all constituents, and",
        "`pcfg` is estimated from the same training trees.\n",
        "The Transformer is clearly better than the PCFG on the WSJ, and slightly better on GUM.\n",
        *head(["treebank", "parser", *figures.values()]),
    ]
    rows = [(row["part"], row["parser"], row) for row in baselines]
    rows += [(Path(row["gold"]).stem, Path(row["test"]).parent.name, row) for row in parts]
    for part, parser, row in sorted(rows, key=lambda row: row[0]):
        lines.append(line([part, parser, *(cell(row.get(name)) for name in figures)]))
    programs = dict.fromkeys(" ".join(row["command"]) for row in parts)
    evaluations = "".join(f"    python -m keras_transformer.{program.replace('.py', '', 1)}\n" for program in programs)
    analyses = [
        analysis(part, row) for part, parser, row in rows[len(baselines) :] if {"by_length", "by_label"} <= row.keys()
    ]
    return "\n".join([*lines, "", commands(baselines) + evaluations, *analyses])


def cell(figure):
    """Return a text as it is and a number as text: a float with two decimals."""
    return f"{figure:,.2f}" if isinstance(figure, float) else f"{figure:,}" if isinstance(figure, int) else figure


def analysis(part, row):
    """Return the errors of a parser by sentence length and by label of the brackets."""
    text = f"""### Errors on {part}

Scores of the Transformer by sentence length, and by label (labels with 40 brackets or more). Long sentences are
hardest:
"""
    lengths = (
        [words, scores["sentences"], scores["errors"],
         *map(scores.get, ("f1", "recall", "precision", "complete_match", "tagging_accuracy"))]
        for words, scores in row["by_length"].items()
    )  # fmt: skip
    labels = (
        [label, *map(scores.get, ("gold", "test", "f1", "recall", "precision"))]
        for label, scores in row["by_label"].items()
        if scores["gold"] >= 40
    )
    heads = "words, sentences, errors, F1, recall, precision, complete match, tags".split(", ")
    by_length = [*head(heads), *(line(map(cell, cells)) for cells in lengths)]
    by_label = [*head(["label", "gold", "predicted", *heads[3:6]]), *(line(map(cell, cells)) for cells in labels)]
    return "\n".join([text, *by_length, "", *by_label, ""])


def parsing_speed(rows):
    """Return the speed of parsing."""
    heads = "sentences, words, beam, constraint, sentences/s, whole trees, machine".split(", ")
    cells = (
        [f"{row['sentences']:,} of {row['problem']}", f"{row['words']:,}", row["beam_size"], row["constraint"],
         f"{row['sentences_per_second']:.2f}", f"{row['whole_trees']:,}", row["machine"]]
        for row in rows
    )  # fmt: skip
    return table("### Parsing speed\n", heads, cells, rows)
