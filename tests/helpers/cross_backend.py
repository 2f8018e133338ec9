"""Program that trains and translates on one backend: `python -m helpers.cross_backend FOLDER SEED OTHER`.

All backends should give the same results. The test process calls `begin` and `finish` for its own backend and starts
this program for the second backend. OTHER is the backend of the test process. Imports are inside functions so that the
program can report which backend modules the commands import.
"""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

FLAGS = (
    "--problem=reverse", "--hparams=toy", "--set=problem.longest=3", "--set=problem.train_pairs=200", "--num_layers=1",
    "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=128", "--dropout=0", "--warmup_steps=5",
    "--eval_steps=6", "--checkpoint_steps=6", "--extra_length=3", "--beam_size=2", "--best_metric=nll",
    "--decode_steps=12",
)  # fmt: skip
LINES = ["s1 s2 s3", "", "s4", "s5 s6 s7 s8 s9 s10"] * 3


def command(name, *flags):
    """Run a command in this process and return the lines that it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        importlib.import_module(f"keras_transformer.{name}").main([*map(str, flags)])
    return printed.getvalue().splitlines()


def train(folder, run, steps):
    """Train the run `folder/run` for `steps` updates and return the lines that `train` prints."""
    places = (f"--data_dir={folder}/data", f"--output_dir={folder}/{run}")
    return command("train", *FLAGS, f"--train_steps={steps}", *places)


def metrics_of_updates(folder, seed, accumulate):
    """Train a model for 20 updates and return its metrics as {name: one value per update}."""
    import keras_transformer as kt

    problem = kt.problem("reverse", data_dir=folder / "data", longest=3, train_pairs=300)
    hparams = kt.HParams(
        num_layers=1, d_model=32, d_ff=64, num_heads=4, dropout=0, batch_tokens=50, warmup_steps=200, seed=seed
    )
    model = kt.Transformer.from_hparams(hparams, problem)
    model.compile(**kt.compile_arguments(hparams, accumulate=accumulate))
    history = model.fit(problem.batches("train", hparams), steps_per_epoch=1, epochs=20, verbose=0).history
    return {name: history[name] for name in ("loss", "nll", "perplexity")}


def begin(folder, seed, backend):
    """Train the run `from_<backend>` for six updates. Return `metrics_of_updates` for 1 and 2 micro-batches."""
    train(folder, f"from_{backend}", 6)
    return {"metrics": {f"{accumulate}": metrics_of_updates(folder, seed, accumulate) for accumulate in (1, 2)}}


def finish(folder, backend, other):
    """Resume the run `from_<other>`, translate and evaluate with the run `whole`, and return all results."""
    import keras_transformer as kt

    resumed = train(folder, f"from_{other}", 12)
    translator = kt.Translator.load(folder / "whole")
    found = translator.translate(LINES, beam_size=3, nbest=3)
    return {
        "resumed": resumed,
        "texts": [[one.text for one in several] for several in found],
        "scores": [[one.score for one in several] for several in found],
        "score": command("evaluate", f"--run={folder}/whole")[-1],
    }


def main(folder, seed, other):
    from keras_transformer.backend.loading import chosen_backend, load_keras

    folder, backend = Path(folder), chosen_backend()
    command("prepare", *FLAGS, f"--data_dir={folder}/prepared")
    prepare_imports = backends_imported()
    load_keras()
    found = begin(folder, int(seed), backend) | finish(folder, backend, other)
    (folder / "lines.txt").write_text("s1 s2\n")
    command("translate", f"--run={folder}/whole", f"--input={folder}/lines.txt", f"--output={folder}/outputs.txt")
    command("average", f"--run={folder}/from_{other}", "--last=2")
    command("cost", "--hparams=toy", "--vocab_size=100")
    found |= {"prepare_imports": prepare_imports, "all_imports": backends_imported()}
    (folder / f"{backend}.json").write_text(json.dumps(found))


def backends_imported():
    """Return the names of the backend modules that this process has imported."""
    tops = ("jax", "tensorflow", "tensorflow_text")
    return sorted(name for name in sys.modules if name in tops)


if __name__ == "__main__":
    main(*sys.argv[1:])
