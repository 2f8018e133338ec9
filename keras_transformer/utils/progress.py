"""Bars that show how far long work is, on a terminal and nowhere else; lines of text go above them."""

import contextlib
import sys

_terminal = None
"""The `rich.progress.Progress` that shows all bars at present, if there are any."""


@contextlib.contextmanager
def progress_bar(what, total, done=0, unit="updates"):
    """Shows a bar with rate and time left inside a `with` block; several may be open at once.

    Args:
        what: What is done, in a word or two.
        total: How many units there are.
        done: How many of them were done before.
        unit: What they are called.

    Yields:
        A function of the number of units that are done; where stdout or stderr is no terminal it does nothing.
    """
    global _terminal
    if not (sys.stderr.isatty() and sys.stdout.isatty()):  # lines that go elsewhere would break the bar
        yield lambda done: None
        return
    is_first = _terminal is None
    if is_first:
        _terminal = _bars()
        _terminal.start()
    task = _terminal.add_task(what, total=total, completed=done, unit=unit)
    try:
        yield lambda done: _terminal.update(task, completed=done)
    finally:
        _terminal.remove_task(task)
        if is_first:
            _terminal.stop()
            _terminal = None


def stop_bars():
    """Takes all bars away, where a process ends without leaving the blocks that show them."""
    if _terminal:
        _terminal.stop()


def _bars():
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units a second."""

        def render(self, task):
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g} {task.fields['unit']}/s")

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, speed_estimate_period=60,
        redirect_stdout=True, redirect_stderr=True,
    )  # fmt: skip
