"""Entry point of `keras-transformer` and `python -m keras_transformer`: run a command, or list registered names."""

import runpy
import sys

from keras_transformer.cli.arguments import Parser, run_command
from keras_transformer.config import registry
from keras_transformer.utils.errors import unknown

COMMANDS = {
    "prepare": "Learn the vocabulary of a problem and encode its corpus.",
    "train": "Train a model, or resume training.",
    "evaluate": "Decode and score a split, or score trees like EVALB.",
    "translate": "Translate or parse lines of text.",
    "score": "Score given translations.",
    "augment": "Translate monolingual text into additional training pairs.",
    "trees": "Draw trees.",
    "average": "Average the last checkpoints of a run.",
    "export": "Export a run as a SavedModel or .keras file, or for CTranslate2 or Hugging Face.",
    "convert": "Convert a pretrained OPUS-MT model to a run.",
    "visualize": "Draw attention maps and learning curves.",
    "serve": "Serve a model over HTTP, with a web page.",
    "cost": "Estimate the cost of a training run.",
}


def main(arguments):
    """Run the command named by the first argument. Without arguments, print all commands and registered names.

    Raises:
        UserError: The command is unknown.
        SystemExit: The command failed.
    """
    if arguments and not arguments[0].startswith("-"):
        command, *rest = arguments
        if command not in COMMANDS:
            raise unknown("command", command, COMMANDS)
        sys.argv = [command, *rest]
        runpy.run_module(f"keras_transformer.{command}", run_name="__main__", alter_sys=True)
        return
    Parser("COMMAND", "--help", "List the commands and all registered names.").parse_args(arguments)
    registry.load_catalog()
    sections = {
        "commands, python -m keras_transformer.COMMAND --help": COMMANDS.items(),
        "problems, --problem=NAME": registry.problems.describe(),
        "hparams, --hparams=NAME": registry.hparams.describe(),
        "models, --model=NAME": registry.models.describe(),
        **{f"layers, --{kind}=NAME": entries.describe() for kind, entries in registry.layers.items()},
    }
    for title, rows in sections.items():
        print(title)
        for name, description in rows:
            print(f"  {name:<24} {description}")
        print()


def console():
    """Run `main` as the entry point of the script `keras-transformer`."""
    run_command(main)


if __name__ == "__main__":
    console()
