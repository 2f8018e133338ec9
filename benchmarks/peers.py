"""Python environments of other engines, and engine processes that run benchmarks on request."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError

PYTHON = "3.11"
"""Python version of the environments, the latest with wheels for the TensorFlow version that OpenNMT-tf requires."""
ROOT = Path(__file__).parent.parent
VERSIONS = {"ctranslate2": "4.8.0", "opennmt_tf": "2.32.0", "pytorch": "2.13.0", "keras_hub": "0.32.0"}
REQUIREMENTS = {
    "pytorch": """
        torch==2.13.0 numpy==2.4.6 filelock==4.2.11 fsspec==2026.9.0 Jinja2==3.1.6 MarkupSafe==3.0.4 mpmath==1.3.0
        networkx==3.6.1 sympy==1.14.0 typing_extensions==4.16.0
    """,
    "keras_hub": """
        keras-hub==0.32.0 keras==3.15.1 tensorflow==2.21.0 tensorflow-text==2.21.1 absl-py==2.5.1 anyio==4.16.0
        astunparse==1.6.3 certifi==2026.10.18 charset-normalizer==3.5.2 click==8.5.1 filelock==4.2.11
        flatbuffers==25.12.19 fsspec==2026.9.0 gast==0.7.0 google-pasta==0.2.0 grpcio==1.85.1 h11==0.16.0 h5py==3.14.0
        hf-xet==1.8.0 httpcore2==2.16.2 httpx2==2.16.2 huggingface_hub==2.4.0 idna==3.20 kagglehub==1.0.2
        kagglesdk==0.1.28 libclang==18.1.1 markdown-it-py==4.3.0 mdurl==0.1.2 ml_dtypes==0.6.0 namex==0.1.0
        numpy==2.4.6 opt_einsum==3.4.0 optree==0.20.0 packaging==26.3 protobuf==7.36.2 Pygments==2.21.0 PyYAML==6.0.3
        regex==2026.11.15 requests==2.34.2 rich==15.0.0 sentencepiece==0.2.3 six==1.17.0 termcolor==3.3.0
        tokenizers==0.23.3 tqdm==4.70.1 truststore==0.10.5 typing_extensions==4.16.0 urllib3==2.8.0 wrapt==2.5.2
    """,
    "ctranslate2": "ctranslate2==4.8.0 numpy==2.4.6 PyYAML==6.0.3",
    "opennmt_tf": """
        OpenNMT-tf==2.32.0 tensorflow==2.13.1 tensorflow-addons==0.21.0 keras==2.13.1 numpy==1.24.3 absl-py==2.5.1
        astunparse==1.6.3 certifi==2026.10.18 cffi==2.1.1 charset-normalizer==3.5.2 colorama==0.4.6
        cryptography==50.0.2 ctranslate2==3.24.0 flatbuffers==25.12.19 gast==0.4.0 google-auth==2.62.2
        google-auth-oauthlib==1.0.0 google-pasta==0.2.0 grpcio==1.74.0 h5py==3.16.0 idna==3.20 libclang==18.1.1
        lxml==6.1.3 Markdown==3.11.3 MarkupSafe==3.0.4 oauthlib==4.0.1 opt_einsum==3.4.0 packaging==26.3
        portalocker==4.4.2 protobuf==4.25.9 pyasn1==0.6.5 pyasn1_modules==0.4.2 pycparser==3.12 pyonmttok==1.38.1
        PyYAML==6.0.3 regex==2026.11.15 requests==2.34.2 requests-oauthlib==2.0.0 rouge==1.0.1 sacrebleu==2.6.0
        six==1.17.0 tabulate==0.10.0 tensorboard==2.13.0 tensorboard-data-server==0.7.2
        tensorflow-estimator==2.13.0 tensorflow-io-gcs-filesystem==0.37.1 termcolor==3.3.0 typeguard==2.13.3
        typing_extensions==4.5.0 urllib3==2.8.0 Werkzeug==3.1.9 wrapt==2.5.2
    """,
}
"""{engine: exact versions of all packages}, so that every installation is identical."""


def python_of(engine, environments):
    """Return the interpreter of an engine. Install its environment if necessary.

    Args:
        engine: Name of an engine. Engines that are not in `REQUIREMENTS` run in the current environment.
        environments: Folder of the environments. You may delete it at any time.

    Raises:
        UserError: The installation failed.
    """
    if engine not in REQUIREMENTS:
        return sys.executable
    requirements = REQUIREMENTS[engine].split()
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
    folder = Path(environments).expanduser() / f"{engine}-{digest}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.is_file():
        report(f"installing the environment of {engine} in {folder}")
        run([interpreter(), "-m", "venv", "--clear", folder], engine)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], engine)
        complete.touch()
    return str(python)


class Process:
    """Process of an engine that has loaded a model and waits for requests.

    Args:
        task: "train", "decode" or "matmul", a task of engines/run_ENGINE.py.
        engine: Name of the engine.
        precision: Data type of the computation.
        mode: Compilation mode of the engine, or "default" if the engine has only one.
        job: Dictionary with the arguments of the task, the number of "threads" and optionally the "device" (default:
            "cpu").
        environments: Folder of the environments.
        folder: New folder for the files of this process.

    Raises:
        UserError: The engine failed.
    """

    def __init__(self, task, engine, precision, mode, job, environments, folder):
        self.engine, self.precision, self.mode = engine, precision, mode
        folder = Path(folder)
        folder.mkdir(parents=True)
        script = ROOT / "benchmarks" / "engines" / f"run_{'keras_transformer' if engine == 'matmul' else engine}.py"
        arguments = [python_of(engine, environments), str(script), str(folder / "job.json")]
        job = {**job, "precision": precision, "mode": mode, "folder": str(folder / "converted"), "started": time.time()}
        environment = {
            "TF_ENABLE_ONEDNN_OPTS": "1", **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": str(job["threads"]), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        if job.get("device", "cpu") == "cpu":
            environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        else:  # several processes share the device, so none may preallocate its memory
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if engine in REQUIREMENTS:
            environment["PYTHONNOUSERSITE"] = "1"
        else:
            environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
        if engine == "ctranslate2":
            (folder / "job.json").write_text(json.dumps({**job, "task": "convert"}), encoding="utf-8")
            run(arguments, engine, env=environment)
        (folder / "job.json").write_text(json.dumps({**job, "task": task}), encoding="utf-8")
        self.log = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        self._answer()

    def repeat(self):
        """Run one round of the task. Return {"seconds": …, "peak_memory_mb": …, …}."""
        try:
            self.child.stdin.write("repeat\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # the engine has exited, and `_answer` raises an error with the reason
        return self._answer()

    def close(self):
        """End the process."""
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()
        self.log.close()

    def _answer(self):
        line = self.child.stdout.readline()
        if not line:
            self.log.seek(0)
            raise failure(self.engine, self.log.read().decode(errors="replace"))
        return json.loads(line)


def alternating(items, turn):
    """Return the items as a list, reversed if `turn` is even, so that consecutive rounds use opposite orders."""
    return list(items) if turn % 2 else list(items)[::-1]


def interpreter():
    """Return the path of a Python 3.11 interpreter."""
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        return sys.executable
    if found := shutil.which(f"python{PYTHON}"):
        return found
    raise UserError(f"python{PYTHON} must be on the PATH for other engines. Install it, or omit them with --engines.")


def run(command, engine, env=None):
    """Run a command with empty stdin.

    Raises:
        UserError: The command failed.
    """
    output = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    done = subprocess.run(list(map(str, command)), **output, env=env)
    if done.returncode:
        raise failure(engine, done.stdout.decode(errors="replace"))


def failure(engine, log):
    """Return a `UserError` that quotes the last line of a log. Print the whole log if it contains a traceback."""
    if "Traceback" in log:
        print(log, file=sys.stderr)
    lines = [line for line in log.splitlines() if line.strip()]
    return UserError(f"{engine} failed: {lines[-1].strip() if lines else 'it printed nothing'}")
