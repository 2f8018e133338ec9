"""reliability.md: what may happen to a training, and what then."""

from pages.markdown import table

RELIABILITY_HEAD = """# Reliability

Faults and how training recovers from them, as tested in `tests/slow` and `tests/integration` (TensorFlow) and in
`tests/unit/training/test_training.py` (both backends), on CPUs. "The same" means that weights, optimizer state and best
checkpoint are bit-for-bit identical to those of an uninterrupted run, with
dropout. On GPUs this was not tested.

| fault | what happens |
|---|---|
| SIGTERM, SIGINT (Ctrl-C) | the update is finished, a checkpoint written, exit status 143 or 130 |
| the same during an evaluation | it is broken off, and made up for when the training goes on |
| another signal, more than a second later | the process ends at once; the checkpoint before stays |
| SIGKILL, also inside a checkpoint write | the same command goes on from the newest whole checkpoint, to the same |
| newest checkpoint cut short, a bit flipped, a file of it gone or of another step | told, the one before is taken |
| disk full while a checkpoint is written | one sentence, exit status 2; with room again, to the same |
| too little room on the disk for all checkpoints | refused before the first update |
| a directory that cannot be written | refused, nothing is changed |
| a second training in the same directory | refused; a killed process leaves no lock behind |
| the corpus has changed since training began | refused: checksums of the prepared corpus |
| a bit flipped in the prepared corpus, vocabulary or configuration | refused, it says where |
| a checkpoint of another model or a newer format | refused, it says which |
| a clock that goes backwards | nothing: times are monotonic, and files are compared by content |
| a loss or gradient that is not finite | the end, or the update is skipped: see below |
| a batch that does not fit into memory | one sentence that names the flags that help, exit status 2: see below |

`--checkpoint_steps` and `--checkpoint_minutes` say how often a checkpoint is written, `--keep_checkpoints` how many
stay; the best one (`--best_metric=score`, `nll` or `loss`) stays besides. `--patience=N` ends a training after N
evaluations without a better one; what was counted survives a stop, too. A checkpoint that a signal asked for goes when
the next one is written, so that `average` takes the same ones of a training that was stopped.

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

metrics.jsonl also holds the mean and the largest gradient norm since the line before. `--clip_norm` bounds the norm.

With `--precision=float16` this applies once the loss scale is 1. Before, a non-finite update is skipped and halves the
scale ([distributed.md](distributed.md)), so `train` reports a loss that stays NaN after 15 to 24 updates.

If the model's outputs are not finite while a validation is decoded, `train` logs that evaluation without a score and
continues. An evaluation without a score is never better than one with a score, and `patience` counts it. `translate`,
`evaluate` and `score` stop with an error; `serve` answers with status 500.

## Memory

The summary of a run estimates the memory of its largest update. When an allocation fails, `train` ends with status 2
and names the flags that lower the need. `--accumulate` and `--remat` make the same updates, `--precision=bfloat16` and
a smaller `--batch_tokens` make other ones. A run that has a checkpoint keeps its `batch_tokens`.

On CPU, Linux may kill a process that takes too much memory before any allocation fails (status 137, or "Killed" in
the shell). The same command then resumes from the last checkpoint. Add one of these flags to it.

## Corpora

A pair is a line and a line, or nothing is prepared: other numbers of lines, bytes that are no UTF-8, a gzip file that
ends early, and a file that changes while it is read are refused, with their place. What a line may hold (a byte order
mark at the beginning, a NUL, U+2028, a form feed, returns) is kept in its place. The manifest counts the training pairs
that are dropped because a side is empty, or because `drop_duplicates` finds them again. Longer pairs than `max_length`
are left out of training, and how many is told.

A prepared corpus is used as long as its files are what they were, also when they are gone; one that has changed, or
another in its place (`train.en` for `train.en.gz`), is noticed, and the corpus prepared anew. Several processes that
need the same one prepare it once.

## Files from elsewhere

Opening a run executes nothing of it: arrays are read without pickle, names are looked up in the registries, and types
and file names in a manifest are this program's own. Plug-ins are the exception: they are your code.

## The soak

One training of `toy_ende`, killed over and over at random moments, each time after it wrote at least one new
checkpoint; every third kill is aimed at a checkpoint write: `make soak`. A checkpoint's time, the median, and its share
of the time of the training that was left alone are at the soak's interval of 10 updates.
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
    text = f"""## What a checkpoint costs

Weights, Adam's state and a moving average, written with fsync and checksums, the median; its share at the
default of a checkpoint every {rows[0]["checkpoint_steps"]:,} updates, were these as small as the one beside
it, and how fast an update must be for a share of 2%.
"""
    heads = "size, parameters, a checkpoint, written in, an update, of, share, 2% of updates of, machine".split(", ")
    cells = (
        [row["size"], f"{row['parameters']:,}", f"{row['megabytes']:,.0f} MB", f"{row['write_seconds']:.2f} s",
         f"{row['update_seconds']:.2f} s", f"{row['tokens']:,} tokens", f"{row['share']:.2%}",
         f"{0.98 / 0.02 * row['write_seconds'] / row['checkpoint_steps']:.3f} s", row["machine"]]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)
