"""What metrics.jsonl gets, as events for TensorBoard, where that is installed; it needs no TensorFlow.

A training does not end because its pictures cannot be written: what goes wrong is said once, and there are no more.
"""

import importlib.util
import sys
import time
import types

SHOWN = ("train", "validation")
"""Kinds of lines whose numbers are shown."""


def open_events(folder):
    """Returns the `Events` of a folder, or None where TensorBoard is not installed."""
    return Events(folder) if importlib.util.find_spec("tensorboard") else None


class Events:
    """A file of events in a folder, which begins with the first line.

    Args:
        folder: Where TensorBoard is to look.
    """

    def __init__(self, folder):
        self._folder, self._writer, self._failed = folder, None, False

    def write(self, line):
        """Adds what a line of metrics.jsonl, a dictionary, has to show."""
        if self._failed:
            return
        try:
            self._writer = self._writer or _writer(self._folder)
            for event in _events(line):
                self._writer.add_event(event)
            self._writer.flush()
        except Exception as error:  # of TensorBoard, or of TensorFlow's file system
            self._failed = True
            print(f"there are no more events for TensorBoard: {' '.join(str(error).split())}", file=sys.stderr)

    def close(self):
        """Ends the file."""
        if self._writer:
            self._writer.close()


def _writer(folder):
    if "tensorflow" not in sys.modules:
        # By this name TensorBoard is told to do without TensorFlow, which it would import where it is installed.
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder))


def _events(line):
    """Yields the events of a line."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    about = {"wall_time": time.time(), "step": line["step"]}
    if line["kind"] == "start":
        # What a killed training showed from the next update on does not count.
        yield Event(session_log=SessionLog(status=SessionLog.START), **{**about, "step": line["step"] + 1})
    for name, value in line.items() if line["kind"] in SHOWN else ():
        if name != "step" and isinstance(value, (int, float)):
            yield Event(summary=scalar_pb(f"{line['kind']}/{name}", value), **about)
    if line.get("samples"):
        texts = [_as_text(sample) for sample in line["samples"]]
        yield Event(summary=text_pb("validation/samples", texts), **about)


def _as_text(sample):
    """A sample translation in Markdown, in which a text is shown as it is."""
    rows = [f"    {name + ':':<11}{' '.join(sample[name].split())}" for name in ("source", "output", "reference")]
    return "\n".join(rows)
