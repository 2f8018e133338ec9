"""Matplotlib learning curves: loss, score, learning rate and speed of one or several runs."""

import bisect
import itertools

from keras_transformer.utils.errors import UserError
from keras_transformer.visualization.attention import COLORS
from keras_transformer.visualization.plots import new_figure

AXES = {"step": "updates", "tokens": "tokens trained on", "flops": "floating point operations", "seconds": "hours"}
"""{quantity on the x-axis: its label}."""


def draw_curves(runs, over="step"):
    """Draw the learning curves of one or several runs and return the Matplotlib `Figure`.

    Args:
        runs: {name: result of `runs.totals.lines_by_step`}.
        over: Quantity on the x-axis, a key of `AXES`. Tokens, operations and hours are summed over updates.

    Raises:
        UserError: Matplotlib is not installed, or a run has no values to draw.
    """
    figure = new_figure(10, 6.6)
    (losses, scores), (rates, speeds) = figure.subplots(2, 2)
    names = set()
    for color, (name, lines) in zip(itertools.cycle(COLORS), runs.items()):
        train, validations = (sorted(lines[kind].items()) for kind in ("train", "validation"))
        if not train:
            raise UserError(f"{name} has no training metrics to draw")
        if missing := [step for step, row in train if over not in row]:
            raise UserError(f"{name} has no {over} at step {missing[0]}; use --over=step")
        place = _places(train, over)
        x = [place(step) for step, _ in train]
        losses.plot(x, [row["nll"] for _, row in train], color=color, linewidth=1, alpha=0.5)
        rates.plot(x, [row["learning_rate"] for _, row in train], color=color)
        speeds.plot(x, [row["tokens_per_second"] for _, row in train], color=color)
        x = [place(step) for step, _ in validations]
        losses.plot(x, [row["nll"] for _, row in validations], color=color, marker="o", markersize=4)
        decoded = [(place(step), row) for step, row in validations if "score" in row]
        places, rows = zip(*decoded) if decoded else ((), ())
        scores.plot(places, [row["score"] for row in rows], color=color, marker="o", markersize=4)
        names |= set(map(_score_name, rows))
    titles = {
        losses: "nats per token: training with dropout (thin), validation (dots)",
        scores: f"{' and '.join(sorted(names)) or 'score'} in validation",
        rates: "learning rate",
        speeds: "tokens per second",
    }
    for axes, title in titles.items():
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(AXES[over], fontsize=9)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    if len(runs) > 1:
        lines = [line for line in losses.lines if line.get_marker() == "o"]
        for text in losses.legend(lines, list(runs), fontsize=8).get_texts():
            text.set_parse_math(False)
    else:
        figure.suptitle(next(iter(runs)), fontsize=11, parse_math=False)
    figure.tight_layout()
    return figure


def _places(train, over):
    """Return a function that maps a step to its x value, the total of the quantity `over` up to this step."""
    if over == "step":
        return lambda step: step
    steps, divisor = [step for step, _ in train], 3600 if over == "seconds" else 1
    totals = list(itertools.accumulate((row[over] / divisor for _, row in train), initial=0.0))
    return lambda step: totals[bisect.bisect_right(steps, step)]


def _score_name(row):
    """Return the name of the main score in a validation row of the log.

    It is the last key of `row["signatures"]`, or "score" if the row has no such entry.
    """
    return ["score", *row.get("signatures", {})][-1]
