"""Running the commands, as a user does or in this process, and a very small run to run them on."""

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
"""Lets processes of tests, whose homes are their own, share what JAX compiles."""
REVERSE = ("--problem=reverse", "--hparams=toy", "--set", "problem.train_pairs=500", *SMALL)


class Outcome(NamedTuple):
    """What became of a command."""

    status: int
    out: str
    err: str

    def succeeded(self):
        """Returns the lines of stdout of a command that went well."""
        assert (self.status, self.err) == (0, "")
        return self.out.splitlines()

    def succeeded_with_warnings(self):
        """Returns the lines of stdout of a command that went well, whatever libraries said on stderr."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    def refused(self, *said):
        """Asserts that the user was told, in one sentence and without a traceback, and it contains what is `said`."""
        assert self.status == 2
        assert self.err.startswith("error: ") and self.err.endswith("\n") and self.err.count("\n") == 1
        for words in said:
            assert str(words) in self.err


def environment(home):
    """Returns the environment of a command: the package is found, whatever the working directory."""
    return {"PYTHONPATH": str(registry.PACKAGE.parent), "PATH": "/usr/bin:/bin", "HOME": str(home), **COMPILED}


def spawn(command, *arguments, cwd, variables=None, **options):
    """Starts a command in a process of its own, as a user does; returns the `subprocess.Popen`.

    Args:
        variables: More variables of the environment.
    """
    return subprocess.Popen(
        [sys.executable, "-m", f"keras_transformer.{command}", *map(str, arguments)],
        cwd=cwd, env={**environment(cwd), **(variables or {})}, stdin=options.pop("stdin", None),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options,
    )  # fmt: skip


def start(command, *arguments, cwd, input=None, **options):
    """Runs a command in a process of its own, as a user does; returns its `Outcome`."""
    process = spawn(command, *arguments, cwd=cwd, stdin=None if input is None else subprocess.PIPE, **options)
    out, err = process.communicate(input)
    return Outcome(process.returncode, out, err)


class Home(NamedTuple):
    """A directory with a run of six updates in it, checkpoints at 3 and 6, and what training said."""

    path: object
    outcome: Outcome

    @property
    def run(self):
        return self.path / "runs" / "reverse-toy"

    def again(self, output_dir=None):
        """Returns the flags of the same training once more."""
        return *REVERSE, "--train_steps=6", f"--data_dir={self.path}/data", f"--output_dir={output_dir or self.run}"


def write_text(folder, content, split="train"):
    """Writes {language: text or bytes} to a folder of parallel text; returns the flags that name it."""
    folder.mkdir(exist_ok=True)
    for language, text in content.items():
        (folder / f"{split}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return "--problem=parallel_text", f"--raw_dir={folder}", f"--data_dir={folder.parent}/data"


TEXT = {language: "".join(f"{language} {i} {i * i}\n" for i in range(300)) for language in ("en", "de")}
