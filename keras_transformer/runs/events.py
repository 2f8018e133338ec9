"""What metrics.jsonl gets, as events for TensorBoard, where that is installed; it needs no TensorFlow."""

import importlib.util
import time

SCALARS = {
    "train": (
        "loss", "nll", "perplexity", "gradient_norm", "learning_rate", "tokens_per_second", "peak_memory_mb",
        "peak_device_memory_mb",
    ),
    "validation": ("loss", "nll", "perplexity", "score"),
}  # fmt: skip
"""Numbers of each kind of line; a validation's further scores, such as BLEU, are those that have a signature."""


def open_events(folder):
    """Returns the `Events` of a folder, or None where TensorBoard is not installed."""
    return Events(folder) if importlib.util.find_spec("tensorboard") else None


class Events:
    """A file of events in a folder.

    Args:
        folder: Where TensorBoard is to look.
    """

    def __init__(self, folder):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def write(self, line):
        """Adds what a line of metrics.jsonl, a dictionary, has to show.

        Raises:
            OSError: It cannot be written.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        about = {"wall_time": time.time(), "step": line["step"]}
        if line["kind"] == "start":
            # What a killed training showed from the next update on does not count.
            begin = {**about, "step": line["step"] + 1}
            self._writer.add_event(Event(session_log=SessionLog(status=SessionLog.START), **begin))
        names = [*SCALARS.get(line["kind"], ()), *line.get("signatures", {})]
        for name in names:
            if isinstance(line.get(name), (int, float)):
                summary = scalar_pb(f"{line['kind']}/{name}", line[name])
                self._writer.add_event(Event(summary=summary, **about))
        if line.get("samples"):
            summary = text_pb("validation/samples", [_as_text(sample) for sample in line["samples"]])
            self._writer.add_event(Event(summary=summary, **about))
        self._writer.flush()

    def close(self):
        """Ends the file."""
        self._writer.close()


def _as_text(sample):
    """A sample translation in Markdown, in which a text is shown as it is."""
    rows = [f"    {name + ':':<11}{' '.join(sample[name].split())}" for name in ("source", "output", "reference")]
    return "\n".join(rows)
