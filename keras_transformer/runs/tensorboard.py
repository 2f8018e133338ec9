"""TensorBoard events with the content of metrics.jsonl, if TensorBoard is installed. TensorFlow is not required.

An error does not stop training: `Events` prints the error once and stops writing events.
"""

import importlib.util
import sys
import time
import types

SHOWN = ("train", "validation")
"""Kinds of lines in metrics.jsonl whose numbers become scalars."""


def open_events(folder):
    """Return an `Events` writer for a folder, or None if TensorBoard is not installed."""
    return Events(folder) if importlib.util.find_spec("tensorboard") else None


class Events:
    """Writer of an event file. The first call to `write` creates the file.

    Args:
        folder: Log directory for TensorBoard.
    """

    def __init__(self, folder):
        self._folder, self._writer, self._failed = folder, None, False

    def write(self, line):
        """Write the events of a line of metrics.jsonl, a dict."""
        if self._failed:
            return
        try:
            self._writer = self._writer or _writer(self._folder)
            for event in _events(line):
                self._writer.add_event(event)
            self._writer.flush()
        except Exception as error:  # raised by TensorBoard or the file system of TensorFlow
            self._failed = True
            print(f"cannot write more events for TensorBoard: {' '.join(str(error).split())}", file=sys.stderr)


def _writer(folder):
    if "tensorflow" not in sys.modules:
        # If a module with this name exists, TensorBoard does not import TensorFlow.
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder))


def _events(line):
    """Yield the TensorBoard events for a line of metrics.jsonl, a dict."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    about = {"wall_time": time.time(), "step": line["step"]}
    if line["kind"] == "start":
        # This event makes TensorBoard drop the events that a killed process wrote for later steps.
        yield Event(session_log=SessionLog(status=SessionLog.START), **{**about, "step": line["step"] + 1})
    for name, value in line.items() if line["kind"] in SHOWN else ():
        if name != "step" and isinstance(value, (int, float)):
            yield Event(summary=scalar_pb(f"{line['kind']}/{name}", value), **about)
    if line.get("samples"):
        texts = [_as_text(sample) for sample in line["samples"]]
        yield Event(summary=text_pb("validation/samples", texts), **about)


def _as_text(sample):
    """Return a sample translation as a Markdown code block, which shows texts verbatim."""
    rows = [f"    {name + ':':<11}{' '.join(sample[name].split())}" for name in ("source", "output", "reference")]
    return "\n".join(rows)
