"""Progress bars on a terminal. Printed lines appear above the bars."""

import contextlib
import sys

_terminal = None
"""The `rich.progress.Progress` that currently shows all bars, or None."""


@contextlib.contextmanager
def progress_bar(what, total, done=0, unit="updates"):
    """Show a bar with rate and remaining time inside a `with` block. Several bars may be open at once.

    Args:
        what: Description of the task, one or two words.
        total: Number of units.
        done: Number of units done before the start.
        unit: Name of the unit, in the plural.

    Yields:
        Function to call with the number of units done so far. It does nothing unless stdout and stderr are terminals.
    """
    global _terminal
    if not (sys.stderr.isatty() and sys.stdout.isatty()):  # lines that are printed through `| tee` would break the bar
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
    """Remove all bars. Call this function before `os._exit`, which skips the clean-up of `with` blocks."""
    if _terminal:
        _terminal.stop()


def _bars():
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units per second."""

        def render(self, task):
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g} {task.fields['unit']}/s")

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, speed_estimate_period=60,
        redirect_stdout=True, redirect_stderr=True,
    )  # fmt: skip
