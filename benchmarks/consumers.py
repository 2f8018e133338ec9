"""Export a run in several formats, translate with each format's software, and compare with the output of `Translator`.

    python benchmarks/consumers.py --run=runs/multi30k --formats=huggingface,argos \\
        --python=transformers-env/bin/python --json=docs/results/exports.jsonl

The program exports a run and starts the interpreter `--python`, which must have these packages:

| format | packages |
|---|---|
| saved_model | tensorflow, tensorflow-text |
| ctranslate2 | ctranslate2, sentencepiece |
| argos | argostranslate |
| huggingface | transformers, torch, sentencepiece, sacremoses |
| onnx | optimum-onnx[onnxruntime], sentencepiece, sacremoses |

The interpreter translates a test split in batches of 64 texts. Only Argos Translate gets one text at a time. The
measurement of sentences per second starts after a warm-up batch. For the format onnx, the interpreter first converts
the huggingface export to ONNX. In the results, `same` is the share of translations that are equal to those of
`Translator`.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from command_line import Parser, add_row, megabytes, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError

FORMATS = "saved_model", "ctranslate2", "argos", "huggingface", "onnx"
PRECISIONS = {"argos": "int8"}
"""{format: precision of the matrices in its exports}. Formats that are not listed use float32."""
BATCH = 64
PROGRAM = Path(__file__).parent / "engines" / "open_export.py"


def main(arguments):
    parser = Parser(__doc__)
    parser.add_run()
    parser.add_argument(
        "--sentences", type=positive_int, default=1000, help="number of test sentences (default %(default)s)"
    )
    parser.add_names("--formats", FORMATS, ",".join(FORMATS))
    parser.add_argument("--python", required=True, help="Python interpreter without keras_transformer")
    flags = parser.parse_args(arguments)
    load_keras()
    import keras_transformer as kt
    from keras_transformer.runs.run import Run

    run, translator = Run.open(flags.run), kt.Translator.load(flags.run, flags.checkpoint)
    pairs = list(run.problem.examples("test"))[: flags.sentences]
    texts, references = (list(side) for side in zip(*pairs))
    expected = [best.text for (best,) in translator.translate(texts)]
    rows = []
    for format in flags.formats:
        with tempfile.TemporaryDirectory() as temporary:
            exported = export(translator, run, format, flags, Path(temporary))
            size = megabytes(exported)
            found = translate(flags.python, format, exported, texts)
        score = run.problem.score(found["outputs"], references)[-1]
        rows.append(add_row({
            "benchmark": "consumers", "problem": run.config["problem"]["name"], "format": format,
            "precision": PRECISIONS.get(format, "float32"), "consumer": found["consumer"], "sentences": len(texts),
            "same": sum(map(str.__eq__, found["outputs"], expected)) / len(texts), "score": score.value,
            "score_name": score.name, "sentences_per_second": len(texts) / found["seconds"], "megabytes": size,
        }, flags.json))  # fmt: skip
        report(f"measured {format}")
    print_table("consumers", rows)


def export(translator, run, format, flags, folder):
    """Export a run in the given format. Return the directory of the export.

    `translator` is the `Translator` of the run.
    """
    target = folder / "out"
    if format == "saved_model":
        import keras_transformer as kt

        kt.export_saved_model(translator, target)
    elif format == "ctranslate2":
        from keras_transformer.exports.ctranslate2 import export_ctranslate2

        export_ctranslate2(run, target, flags.checkpoint)
    elif format == "argos":
        from keras_transformer.exports.argos import export_argos

        export_argos(run, target, flags.checkpoint)
    else:
        from keras_transformer.exports.huggingface import export_huggingface

        export_huggingface(run, target, flags.checkpoint)
    if format == "onnx":
        task = "--task=text2text-generation-with-past"
        start(flags.python, "-m", "optimum.exporters.onnx", f"--model={target}", task, folder / "onnx")
        return folder / "onnx"
    return target


def translate(python, format, exported, texts):
    """Translate texts with an export. Return the answer of `open_export.py`, which runs in another interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"texts": texts, "batch": BATCH}), "utf-8")
        start(python, PROGRAM, format, exported, request, answer)
        return json.loads(answer.read_text("utf-8"))


def start(python, *arguments):
    """Run another Python interpreter without PYTHONPATH, so that it cannot import this project."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *map(str, arguments)], env=environment, stderr=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"--python={python} could not translate: {reason}. Use an interpreter as described in --help.")


if __name__ == "__main__":
    run_command(main)
