"""python -m keras_transformer: what there is."""

from keras_transformer import registry
from keras_transformer.errors import UserError, unknown
from keras_transformer.flags import Parser, run_command

COMMANDS = {
    "prepare": "Learns a problem's vocabulary and encodes its corpus.",
    "train": "Trains a model; repeated, it resumes.",
    "evaluate": "Decodes a split and scores it; or scores trees as EVALB does.",
    "translate": "Translates, or parses, lines of text.",
    "score": "Tells how probable given translations are.",
    "trees": "Draws trees.",
    "average": "Averages the last checkpoints of a run.",
    "export": "Writes a run as SavedModel, for CTranslate2 or as .keras file.",
    "visualize": "Draws what a model attends to, and curves of trainings.",
    "serve": "Serves a model over HTTP, with a page for people.",
    "cost": "Tells what a training will cost.",
}


def main(arguments):
    """Prints the commands and all registered names."""
    if arguments and not arguments[0].startswith("-"):
        command, *rest = arguments
        if command not in COMMANDS:
            raise unknown("command", command, COMMANDS)
        given = " ".join(["python -m keras_transformer." + command, *rest])
        raise UserError(f"a command is a module, with a dot before its name: {given}")
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


if __name__ == "__main__":
    run_command(main)
