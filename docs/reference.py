"""Writes commands.md and presets.md, from what the commands and the registered hparams say of themselves.

python docs/reference.py            # writes both
python docs/reference.py --check    # tells whether they are what would be written; status 1 if not
"""

import os
import subprocess
import sys
from pathlib import Path

from keras_transformer import registry
from keras_transformer.__main__ import COMMANDS

DOCS = Path(__file__).parent
VOCABULARY = 37_000
WIDTH = "96"
MADE = "<!-- Written by docs/reference.py. -->\n"


def commands_page():
    """Returns commands.md: each command's own help."""
    parts = [
        "# Commands",
        MADE
        + "Every flag is `--NAME=VALUE`. A mistake is told in one sentence, with exit status 2; 75 means that another "
        "worker is gone, 130 and 143 that a signal ended the work.",
    ]
    for command, what in COMMANDS.items():
        asked = [sys.executable, "-m", f"keras_transformer.{command}", "--help"]
        environment = {**os.environ, "COLUMNS": WIDTH, "PYTHONPATH": str(DOCS.parent)}
        text = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
        parts += [f"## {command}", what, f"```text\n{text.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def presets_page():
    """Returns presets.md: sizes and cost of all registered hparams."""
    from keras_transformer.startup import load_keras

    load_keras()
    from keras_transformer.hyperparameters import load_hparams
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training.cost import training_cost

    heads = "preset what layers d_model d_ff heads dropout tokens updates parameters FLOPs".split()
    rows = [heads, ["---"] * len(heads)]
    for name, what in registry.hparams.describe():
        h = load_hparams(name)
        cost = training_cost(Transformer(VOCABULARY, h))
        sizes = [f"{h.num_layers} + {h.num_layers}", h.d_model, h.d_ff, h.num_heads, f"{h.dropout:g}"]
        work = [f"{number:,}" for number in (h.batch_tokens, h.train_steps, cost.parameters)]
        rows.append([f"`{name}`", what.rstrip("."), *sizes, *work, f"{cost.counted:.1e}"])
    table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    return f"""# Presets

{MADE}All with a vocabulary of {VOCABULARY:,} tokens and sentences of 30, as
`python -m keras_transformer.cost --hparams=NAME` counts; a preset that is trained on another vocabulary has other
numbers, which `train --dry_run` tells. Tokens are those of an update, on either side; FLOPs those of the whole
training.

{table}

[results.md](results.md) has what came out, and how long it took; [cost.md](cost.md) hours by hardware;
[reproduce.md](reproduce.md) the commands for the paper's figures.
"""


def main(arguments):
    """Writes or, with `--check`, compares the pages; returns the exit status."""
    registry.load_catalog()
    stale = []
    for name, make in (("commands.md", commands_page), ("presets.md", presets_page)):
        path, text = DOCS / name, make()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"not what docs/reference.py writes: {', '.join(stale)}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
