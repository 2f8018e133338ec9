"""Function that measures the time of each operation with TensorFlow's profiler on a CPU."""

import glob
import re
import tempfile
import time
from pathlib import Path

CONTAINERS = re.compile(
    r"^\s|^(Execute|EagerExecute|EagerKernelExecute|ExecuteAsyncOnStream|BlockUntilReady|Process|Run|Await|function|while)$"
    r"|inference_function|TFE_Py|ParallelFor|FunctionRun|ExecutorDone"
)
"""Pattern for kinds of events that contain or wait for other events. `profile` skips them, so no time counts twice."""


def profile(function):
    """Profile a call to a function. Return (wall-clock seconds, [(operation name, kind, seconds), ...]).

    Operations that XLA has fused appear as one operation with a name from XLA.
    """
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(python_tracer_level=0))
        try:
            began = time.perf_counter()
            function()
            seconds = time.perf_counter() - began
        finally:
            tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        space = xplane_pb2.XSpace()
        space.ParseFromString(Path(path).read_bytes())
    found = []
    for plane in space.planes:
        names = {number: metadata.name.rpartition(":") for number, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name, _, kind = names[event.metadata_id]
                if not CONTAINERS.search(kind):
                    found.append((name, kind, event.duration_ps / 1e12))
    return seconds, found
