"""python -m keras_transformer.convert: create a run from a pretrained model of another toolkit."""

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, run_command, user_path
from keras_transformer.cli.output import report
from keras_transformer.data.language_tags import language_tag
from keras_transformer.tasks.problem import load_problem, parse_parameters
from keras_transformer.utils.errors import UserError, shell_flag, unknown

FORMATS = ("huggingface",)


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "convert", "--from=huggingface --model=opus-mt-en-de --output_dir=runs/opus-mt-en-de",
        "Convert a pretrained Marian model such as OPUS-MT to a run. All other commands accept this run.",
    )  # fmt: skip
    parser.add_argument("--from", required=True, dest="format", help=", ".join(FORMATS))
    parser.add_argument("--model", required=True, help="directory of the model, or its name USER/NAME on the hub")
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default the main branch)")
    parser.add_argument("--output_dir", type=user_path, required=True, help="new run directory")
    parser.add_argument(
        "--problem",
        default="pretrained_text",
        help="problem that provides splits for evaluate (default: a problem without a corpus)",
    )
    parser.add_argument("--raw_dir", type=user_path, help="folder of the problem's corpus files")
    parser.add_argument(
        "--set", action="append", default=[], metavar="problem.NAME=VALUE",
        help="field of the problem (repeatable)",
    )  # fmt: skip
    flags = parser.parse_args(arguments)
    if flags.format not in FORMATS:
        raise unknown("format", flags.format, FORMATS)
    from keras_transformer.pretrained.huggingface import locate, read_marian

    pretrained = read_marian(locate(flags.model, flags.revision))
    problem = _problem(flags, pretrained.languages)
    tags = pretrained.tokenizer.tags.values()
    if any(language_tag(part.target) not in tags for part in problem.parts.values()):
        raise UserError(
            f"--problem={problem.name} needs tags such as <2de>, which {flags.model} lacks. Choose another."
        )
    load_keras()
    from keras_transformer.pretrained.run_writer import write_run

    run = write_run(pretrained, problem, flags.output_dir)
    report(f"{run.path}: try python -m keras_transformer.translate {shell_flag('run', run.path)}")


def _problem(flags, languages):
    """Return the problem of the new run."""
    parameters = {}
    for text in flags.set:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("problem."):
            raise UserError(f"--set must be problem.NAME=VALUE, got {text}.")
        parameters[name.removeprefix("problem.")] = value
    if flags.problem == "pretrained_text":
        known = {side: code for side, code in zip(("source", "target"), languages) if code}
        parameters = {**known, **parameters}
        if missing := [side for side in ("source", "target") if side not in parameters]:
            flags_to_add = " ".join(f"--set problem.{side}=CODE" for side in missing)
            raise UserError(
                f"{flags.model} does not specify the {' and '.join(missing)} language. Add {flags_to_add}, for example "
                f"--set problem.{missing[0]}=de."
            )
    parameters = parse_parameters(flags.problem, parameters)
    return load_problem(flags.problem, data_dir="data", raw_dir=flags.raw_dir, **parameters)


if __name__ == "__main__":
    run_command(main)
