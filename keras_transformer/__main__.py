"""The command `keras-transformer`, or `python -m keras_transformer`: run a command, or list all names."""

import runpy
import sys

from keras_transformer.cli.arguments import Parser, run_command
from keras_transformer.config import registry
from keras_transformer.utils.errors import unknown

COMMANDS = {
    "prepare": "Learns a problem's vocabulary and encodes its corpus.",
    "train": "Trains a model; repeated, it resumes.",
    "evaluate": "Decodes a split and scores it; or scores trees as EVALB does.",
    "translate": "Translates, or parses, lines of text.",
    "score": "Scores given translations.",
    "trees": "Draws trees.",
    "average": "Averages the last checkpoints of a run.",
    "export": "Writes a run as SavedModel, for CTranslate2 or as .keras file.",
    "convert": "Makes a run from a pretrained OPUS-MT model.",
    "visualize": "Draws attention maps and learning curves.",
    "serve": "Serves a model over HTTP, with a page for people.",
    "cost": "Estimates the cost of a training run.",
}


def main(arguments):
    """Run the command that the first argument names, or print the commands and all registered names.

    Raises:
        UserError: There is no such command.
        SystemExit: The command has failed.
    """
    if arguments and not arguments[0].startswith("-"):
        command, *rest = arguments
        if command not in COMMANDS:
            raise unknown("command", command, COMMANDS)
        sys.argv = [command, *rest]
        runpy.run_module(f"keras_transformer.{command}", run_name="__main__", alter_sys=True)
        return
    Parser("COMMAND", "--help", "Lists the commands and all registered names.").parse_args(arguments)
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
    """Run `main` as the script `keras-transformer` of an installed package."""
    run_command(main)


if __name__ == "__main__":
    console()
