"""Functions that run commands in new processes, and flags of a very small training run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from keras_transformer.config import registry

SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=512", "--eval_steps=3",
         "--checkpoint_steps=3", "--warmup_steps=2", "--beam_size=2", "--extra_length=3")  # fmt: skip
COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR")
    or str(Path.home() / ".cache" / "keras_transformer" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
}
"""Environment variables with which all test processes share JAX's compilation cache."""
REVERSE = ("--problem=reverse", "--hparams=toy", "--set", "problem.train_pairs=500", *SMALL)


class Outcome(NamedTuple):
    """Exit status and output of a finished command."""

    status: int
    out: str
    err: str

    def succeeded(self):
        """Assert that the command succeeded and printed nothing to stderr. Return the lines of stdout."""
        assert (self.status, self.err) == (0, "")
        return self.out.splitlines()

    def succeeded_with_warnings(self):
        """Assert that the command succeeded, and return the lines of stdout. Ignore stderr."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    def refused(self, *said):
        """Assert that the command failed with a one-line error message that contains all strings in `said`."""
        assert self.status == 2
        assert self.err.startswith("error: ") and self.err.endswith("\n") and self.err.count("\n") == 1
        for words in said:
            assert str(words) in self.err


def environment(home):
    """Return environment variables that let a command import the package from any working directory."""
    return {"PYTHONPATH": str(registry.PACKAGE.parent), "PATH": "/usr/bin:/bin", "HOME": str(home), **COMPILED}


def spawn(command, *arguments, cwd, variables=None, **options):
    """Start a command in a new process and return its `subprocess.Popen` object.

    Args:
        variables: Additional environment variables.
    """
    return subprocess.Popen(
        [sys.executable, "-m", f"keras_transformer.{command}", *map(str, arguments)],
        cwd=cwd, env={**environment(cwd), **(variables or {})}, stdin=options.pop("stdin", None),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options,
    )  # fmt: skip


def start(command, *arguments, cwd, input=None, **options):
    """Run a command in a new process and return its `Outcome`."""
    process = spawn(command, *arguments, cwd=cwd, stdin=None if input is None else subprocess.PIPE, **options)
    out, err = process.communicate(input)
    return Outcome(process.returncode, out, err)


class Home(NamedTuple):
    """Home directory with a run of six updates and checkpoints at steps 3 and 6, and the `Outcome` of `train`."""

    path: object
    outcome: Outcome

    @property
    def run(self):
        return self.path / "runs" / "reverse-toy"

    def again(self, output_dir=None):
        """Return the flags of the `train` command that made the run, optionally with a different output directory."""
        return *REVERSE, "--train_steps=6", f"--data_dir={self.path}/data", f"--output_dir={output_dir or self.run}"


def write_text(folder, content, split="train"):
    """Write parallel text to a folder and return the command flags that select the folder.

    Args:
        folder: Folder of the text files. It is created if it does not exist.
        content: {language: text or bytes}.
        split: Stem of the file names.
    """
    folder.mkdir(exist_ok=True)
    for language, text in content.items():
        (folder / f"{split}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return "--problem=parallel_text", f"--raw_dir={folder}", f"--data_dir={folder.parent}/data"


TEXT = {language: "".join(f"{language} {i} {i * i}\n" for i in range(300)) for language in ("en", "de")}
