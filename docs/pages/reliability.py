"""reliability.md: faults and how training recovers from them."""

from pages.markdown import table

RELIABILITY_HEAD = """# Reliability

This page lists faults and how training recovers from them. The tests are in `tests/slow` and `tests/integration`
(TensorFlow) and in `tests/unit/training/test_training.py` (both backends). They run on CPUs; recovery on GPUs was not
tested.

"Identical" means that weights, optimizer state and best checkpoint are bit-for-bit identical to those of an
uninterrupted run, including dropout.

## Faults

| fault | what happens |
|---|---|
| SIGTERM, SIGINT (Ctrl-C) | `train` finishes the update, writes a checkpoint and exits with status 143 or 130 |
| SIGTERM or SIGINT during a validation | `train` stops the validation and repeats it after the restart |
| a second signal, more than a second later | the process ends immediately; the previous checkpoint stays |
| SIGKILL, also during a checkpoint write | the same command resumes from the newest complete checkpoint: identical |
| newest checkpoint truncated, corrupt or incomplete | `train` prints a warning and uses the previous one |
| disk full during a checkpoint write | one-sentence error, exit status 2; with free space, the same command resumes |
| too little disk space for all checkpoints | error before the first update |
| directory not writable | error; nothing changes |
| second run in the same directory | error; a killed process leaves no lock behind |
| corpus changed since the run began | error (checksums of the prepared corpus) |
| bit flipped in the prepared corpus, vocabulary or configuration | error that names the file |
| checkpoint of another model or of a newer format | error that names the difference |
| system clock set back | no effect: times are monotonic, and files are compared by content |
| loss or gradient not finite | the run stops or skips the update ([below](#numbers-that-are-not-finite)) |
| batch does not fit into memory | one-sentence error that names helpful flags, exit status 2 ([below](#memory)) |

| flag | effect |
|---|---|
| `--checkpoint_steps`, `--checkpoint_minutes` | interval between checkpoints |
| `--keep_checkpoints` | number of latest checkpoints to keep; the best one is kept in addition |
| `--best_metric=score`, `nll` or `loss` | criterion for the best checkpoint |
| `--patience=N` | stop after N validations without improvement; the count survives a restart |

A checkpoint that was written because of a signal is deleted when the next one is written. `average` therefore uses the
same checkpoints as in an uninterrupted run.

## Numbers that are not finite

The optimizer skips an update whose gradients are not finite: weights and moments keep their values. With
`--on_nonfinite=stop`, the default, the run ends. The message names the update, the first training pairs of its batch
and the last checkpoint, which is a good one. With `--on_nonfinite=skip` the run continues until it has skipped more
than `--max_skipped` updates. You may set both flags when you resume a run.

`train` checks for skipped updates with each line of the log, so at most 50 updates later and before every checkpoint.
A line of metrics.jsonl with `"kind": "nonfinite"` holds the first skipped update, the number of skipped updates and all
pairs of the first one's batch. This prints them:

    from keras_transformer.runs.run import Run

    run = Run.open("runs/mine")
    problem = run.problem.prepare()
    split = problem.store.split("train")
    for row in (row for row in run.metrics() if row["kind"] == "nonfinite"):
        for pair in row["rows"]:
            print(row["step"], *(problem.tokenizer.decode(side[pair]) for side in (split.source, split.target)))

`metrics.jsonl` also holds the mean and the maximum gradient norm since the previous line. `--clip_norm` limits the
norm.

```{note}
With `--precision=float16`, a non-finite update first halves the loss scale ([distributed.md](distributed.md)). The
rules above apply once the scale is 1. A loss that stays NaN is therefore reported after 15 to 24 updates.
```

If the outputs of the model are not finite during a validation, `train` logs the validation without a score and
continues. Such a validation never counts as an improvement. `translate`, `evaluate` and `score` stop with an error;
`serve` answers with status 500.

## Memory

The summary of a run estimates the memory of its largest update. When an allocation fails, `train` ends with status 2
and names the flags that lower the need. `--accumulate` and `--remat` make the same updates, `--precision=bfloat16` and
a smaller `--batch_tokens` make other ones. A run that has a checkpoint keeps its `batch_tokens`.

On CPU, Linux may kill a process that takes too much memory before any allocation fails (status 137, or "Killed" in
the shell). The same command then resumes from the last checkpoint. Add one of these flags to it.

## Corpora

`prepare` only accepts complete pairs of lines. It raises an error with the file and the line if

- two files have different numbers of lines,
- a line is not valid UTF-8,
- a compressed file ends early,
- a file changes while it is read.

Special characters in a line (a byte order mark at the beginning, NUL, U+2028, form feeds, carriage returns) are kept.
The manifest counts the training pairs that were dropped because of an empty side or by `drop_duplicates`. `train`
prints the number of pairs that are longer than `max_length` and dropped.

A prepared corpus is valid as long as its source files are unchanged or missing. If a file has changed, or another one
replaces it (`train.en` instead of `train.en.gz`), the corpus is prepared again. Several processes that need the same
corpus prepare it only once.

## Untrusted runs

Opening a run does not execute any code from it: arrays are loaded without pickle, and names are looked up in the
registries. Plug-ins are the exception, because they are your own code.

## Soak test

`make soak` trains `toy_ende` and kills the run again and again at random moments, each time after at least one new
checkpoint. Every third kill hits a checkpoint write. The table also shows the median time of a checkpoint, and its
share of an uninterrupted run with a checkpoint every 10 updates. No kill lost a run.
"""


def reliability_page(rows, checkpoints):
    """Return the text of reliability.md."""
    heads = "updates, kills, of these SIGTERM, inside a checkpoint write, survived, lost, a checkpoint, its share"
    cells = (
        [f"{row['updates']:,}", *(row[name] for name in ("kills", "sigterm", "inside_a_checkpoint_write", "survived")),
         row["lost"], f"{1000 * row['checkpoint_share']['seconds_each']:.0f} ms",
         f"{row['checkpoint_share']['share']:.1%}", row["machine"]]
        for row in rows
    )  # fmt: skip
    soak = table(RELIABILITY_HEAD, [*heads.split(", "), "machine"], cells, rows, "tests/slow")
    return "\n".join([soak, checkpoint_times(checkpoints)])


def checkpoint_times(rows):
    """Return the cost of checkpoints at the default interval."""
    text = f"""## Cost of a checkpoint

Median time to write the weights, the optimizer state and a moving average, with fsync and checksums. The share
assumes the default interval of {rows[0]["checkpoint_steps"]:,} updates of the given size. The column "2% of updates
of" is the update time for which checkpoints take 2% of the time.
"""
    heads = "size, parameters, a checkpoint, written in, an update, of, share, 2% of updates of, machine".split(", ")
    cells = (
        [row["size"], f"{row['parameters']:,}", f"{row['megabytes']:,.0f} MB", f"{row['write_seconds']:.2f} s",
         f"{row['update_seconds']:.2f} s", f"{row['tokens']:,} tokens", f"{row['share']:.2%}",
         f"{0.98 / 0.02 * row['write_seconds'] / row['checkpoint_steps']:.3f} s", row["machine"]]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)
