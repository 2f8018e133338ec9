"""Functions that run commands in this process or in a new one, and a very small run on which to use them."""

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
"""Environment that makes test processes share the compilation cache of JAX."""
REVERSE = ("--problem=reverse", "--hparams=toy", "--set", "problem.train_pairs=500", *SMALL)


class Outcome(NamedTuple):
    """Status and output of a finished command."""

    status: int
    out: str
    err: str

    def succeeded(self):
        """Assert success without output on stderr, and return the lines of stdout."""
        assert (self.status, self.err) == (0, "")
        return self.out.splitlines()

    def succeeded_with_warnings(self):
        """Assert success, whatever libraries print to stderr, and return the lines of stdout."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    def refused(self, *said):
        """Assert that the command failed with one error sentence that contains each of `said`, without a traceback."""
        assert self.status == 2
        assert self.err.startswith("error: ") and self.err.endswith("\n") and self.err.count("\n") == 1
        for words in said:
            assert str(words) in self.err


def environment(home):
    """Return environment variables with which a command finds the package from any working directory."""
    return {"PYTHONPATH": str(registry.PACKAGE.parent), "PATH": "/usr/bin:/bin", "HOME": str(home), **COMPILED}


def spawn(command, *arguments, cwd, variables=None, **options):
    """Start a command in a new process. Return the `subprocess.Popen`.

    Args:
        variables: Additional environment variables.
    """
    return subprocess.Popen(
        [sys.executable, "-m", f"keras_transformer.{command}", *map(str, arguments)],
        cwd=cwd, env={**environment(cwd), **(variables or {})}, stdin=options.pop("stdin", None),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options,
    )  # fmt: skip


def start(command, *arguments, cwd, input=None, **options):
    """Run a command in a new process. Return its `Outcome`."""
    process = spawn(command, *arguments, cwd=cwd, stdin=None if input is None else subprocess.PIPE, **options)
    out, err = process.communicate(input)
    return Outcome(process.returncode, out, err)


class Home(NamedTuple):
    """Directory with a run of six updates, which has checkpoints at updates 3 and 6, and the outcome of training."""

    path: object
    outcome: Outcome

    @property
    def run(self):
        return self.path / "runs" / "reverse-toy"

    def again(self, output_dir=None):
        """Return the flags that repeat the same training command."""
        return *REVERSE, "--train_steps=6", f"--data_dir={self.path}/data", f"--output_dir={output_dir or self.run}"


def write_text(folder, content, split="train"):
    """Write {language: text or bytes} to a folder of parallel text. Return the command flags that select the folder."""
    folder.mkdir(exist_ok=True)
    for language, text in content.items():
        (folder / f"{split}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return "--problem=parallel_text", f"--raw_dir={folder}", f"--data_dir={folder.parent}/data"


TEXT = {language: "".join(f"{language} {i} {i * i}\n" for i in range(300)) for language in ("en", "de")}
