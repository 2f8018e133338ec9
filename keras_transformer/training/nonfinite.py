"""What becomes of updates that were not finite: told with their sentences, then the end, or a few are borne."""

import json

from keras_transformer.data.lines import find_lines
from keras_transformer.utils.errors import UserError


class NonFinite:
    """Ends a training whose updates are not finite, or lets at most `max_skipped` of them be skipped.

    The updates that were skipped are in the run's log, so that a resumed training counts on.

    Args:
        start: Updates before this training.
        run: `Run`.
        problem: `Problem`.
        hparams: `on_nonfinite` and `max_skipped` are read.
        batches: The `TokenBatches` that are trained on, from batch `start`.
        report: Called with each line.
    """

    def __init__(self, start, run, problem, hparams, batches, report):
        self.start, self.run, self.problem, self.hparams, self.report = start, run, problem, hparams, report
        self.batches = batches
        self.skipped = {row["step"] for row in run.metrics() if row["kind"] == "nonfinite" and row["step"] <= start}

    def found(self, steps):
        """Takes the numbers of updates that were skipped.

        Raises:
            UserError: They are the end of the training.
        """
        for step in steps:
            self.skipped.add(step)
            what = f"update {step:,}: the loss or a gradient is not finite"
            stop = self.hparams.on_nonfinite == "stop"
            if not stop and len(self.skipped) <= self.hparams.max_skipped:
                self.run.log(kind="nonfinite", step=step)
                self.report(f"{what}; skipped, its sentences are in {self.write(step)[0]}")
                continue
            path, lines = self.write(step)
            where = f" ({', '.join(lines[:3])}{', …' * (len(lines) > 3)})" if lines else ""
            last = [saved for saved in self.run.checkpoints.steps() if saved < step][-1:]
            good = f"the last good checkpoint is of step {last[0]:,}" if last else "no checkpoint was written before"
            hint = (
                "try a smaller --learning_rate_scale or --clip_norm=1, in another --output_dir, or go on without such "
                "batches: --on_nonfinite=skip"
                if stop
                else f"it is one more than --max_skipped={self.hparams.max_skipped}"
            )
            raise UserError(f"{what}; the sentences of its batch are in {path}{where}; {good}; {hint}")

    def write(self, step):
        """Writes the sentences of the batch of an update; returns the file, and where the first ones come from."""
        index = step - 1 - self.start
        sides = [self.problem.tokenizer.decode(ids) for ids in self.batches.sequences(index)]
        pairs = list(zip(*sides))
        lines = find_lines(pairs, self.problem.store.manifest.get("corpus", ()))  # which need not be there any more
        path = self.run.path / f"nonfinite-{step:09d}.jsonl"
        with self.run.atomic_open(path.name) as file:
            for (source, target), places in zip(pairs, lines):
                files = [{str(one): number, str(other): number} for one, other, number in places]
                file.write(json.dumps({"source": source, "target": target, "lines": files}, ensure_ascii=False) + "\n")
        return path, [f"{places[0][0]}:{places[0][2]}" for places in lines if places]
