"""results.md: parsers by treebank, where they err, and how fast they are."""

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
        "The test split of `parsing_english`, together and by treebank. `right_branching` has the most frequent label",
        "for all constituents, `pcfg` is read off the same training trees, see `benchmarks/parsing_baselines.py`.",
        "As EVALB counts: errors are sentences with punctuation tagged as a word, or a word as punctuation, and EVALB",
        "leaves them out. The F1 of all sentences counts their brackets as unmatched; rows without it are older.\n",
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
    text = f"""### Where it errs on {part}

By words of the sentence, and by label, those with 40 brackets or more.
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
    by_label = [*head(["label", "gold", "parser's", *heads[3:6]]), *(line(map(cell, cells)) for cells in labels)]
    return "\n".join([text, *by_length, "", *by_label, ""])


def parsing_speed(rows):
    """Return the speed of parsing."""
    heads = "sentences, words, beam, constraint, sentences/s, whole trees, machine".split(", ")
    cells = (
        [f"{row['sentences']:,} of {row['problem']}", f"{row['words']:,}", row["beam_size"], row["constraint"],
         f"{row['sentences_per_second']:.2f}", f"{row['whole_trees']:,}", row["machine"]]
        for row in rows
    )  # fmt: skip
    return table("### How fast\n", heads, cells, rows)
