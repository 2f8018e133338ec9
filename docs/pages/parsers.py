"""results.md: parsers by treebank, where they err, and how fast they are."""

from pathlib import Path

from pages.markdown import commands, line


def parsers(baselines, parts):
    """Returns the F1 of parsers on parts of a test split, baselines first."""
    figures = ("f1", "recall", "precision", "complete_match", "tagging_accuracy", "sentences", "errors")
    lines = [
        "## Parsers on each treebank\n",
        "The test split of `parsing_english`, together and by treebank. `right_branching` has the most frequent label",
        "for all constituents, `pcfg` is read off the same training trees, see `benchmarks/parsing_baselines.py`.",
        "As EVALB counts: errors are sentences with punctuation tagged as a word, or a word as punctuation, and do not",
        "count.\n",
        "| treebank | parser | F1 | recall | precision | complete match | tags | sentences | errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [(row["part"], row["parser"], row) for row in baselines]
    rows += [(Path(row["gold"]).stem, Path(row["test"]).parent.name, row) for row in parts]
    for part, parser, row in sorted(rows, key=lambda row: row[0]):
        cells = [f"{row[name]:,.2f}" if isinstance(row[name], float) else f"{row[name]:,}" for name in figures]
        lines.append(line([part, parser, *cells]))
    programs = dict.fromkeys(" ".join(row["command"]) for row in parts)
    evaluations = "".join(f"    python -m keras_transformer.{program.replace('.py', '', 1)}\n" for program in programs)
    analyses = [
        analysis(part, row) for part, parser, row in rows[len(baselines) :] if {"by_length", "by_label"} <= row.keys()
    ]
    return "\n".join([*lines, "", commands(baselines) + evaluations, *analyses])


def analysis(part, row):
    """Returns where a parser errs, by the sentences' length and by the brackets' label."""
    lines = [
        f"### Where it errs on {part}\n",
        "By words of the sentence, and by label, those with 40 brackets or more.\n",
        "| words | sentences | errors | F1 | recall | precision | complete match | tags |",
        "|---|---|---|---|---|---|---|---|",
    ]
    figures = ("f1", "recall", "precision")
    for words, scores in row["by_length"].items():
        cells = [f"{scores[name]:.2f}" for name in (*figures, "complete_match", "tagging_accuracy")]
        lines.append(line([words, f"{scores['sentences']:,}", f"{scores['errors']:,}", *cells]))
    lines += ["", "| label | gold | parser's | F1 | recall | precision |", "|---|---|---|---|---|---|"]
    for label, scores in row["by_label"].items():
        if scores["gold"] >= 40:
            cells = [f"{scores['gold']:,}", f"{scores['test']:,}", *(f"{scores[name]:.2f}" for name in figures)]
            lines.append(line([label, *cells]))
    return "\n".join([*lines, ""])


def parsing_speed(rows):
    """Returns how fast sentences are parsed."""
    lines = ["| sentences | words | beam | constraint | sentences/s | whole trees | machine |", "|" + "---|" * 7]
    lines += [
        f"| {row['sentences']:,} of {row['problem']} | {row['words']:,} | {row['beam_size']} | {row['constraint']} "
        f"| {row['sentences_per_second']:.2f} | {row['whole_trees']:,} | {row['machine']} |"
        for row in rows
    ]
    return "\n".join(["### How fast\n", *lines, "", commands(rows)])
