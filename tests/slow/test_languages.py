"""Tests that all commands preserve text in six scripts, and that a model learns to translate it."""

import json

import pytest
from helpers.languages import LANGUAGES, toy_pairs

UPDATES = 400
SIZES = (
    "--hparams=toy", "--num_layers=1", "--d_model=64", "--d_ff=128", "--batch_tokens=1024", "--warmup_steps=100",
    f"--train_steps={UPDATES}", f"--eval_steps={UPDATES}", f"--checkpoint_steps={UPDATES}", "--beam_size=2",
)  # fmt: skip
TOKENIZERS = {"zh": "zh", "th": "char", "ja": "char", "ar": "13a", "tr": "13a", "hi": "13a"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_from_corpus_to_export(call, tmp_path, fresh_seed, language):
    pairs = toy_pairs(language, fresh_seed)
    for name, part in {"train": pairs[:2000], "validation": pairs[2000:2030], "test": pairs[2030:2060]}.items():
        (tmp_path / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in part), "utf-8")
    problem = (
        "--problem=parallel_text", f"--raw_dir={tmp_path}", f"--data_dir={tmp_path}/data",
        "--set=problem.vocab_size=160", f"--set=problem.target={language}",
    )  # fmt: skip
    call("train", *problem, *SIZES, f"--seed={fresh_seed}", f"--output_dir={tmp_path}/run").succeeded_with_warnings()

    run = f"--run={tmp_path}/run"
    report = call("evaluate", run, "--split=test", "--json").succeeded_with_warnings()
    scores = json.loads("\n".join(report))["scores"]
    print(language, {name: round(score["value"], 1) for name, score in scores.items()})
    assert scores["sacreBLEU"]["value"] > 70 and f"tok:{TOKENIZERS[language]}" in scores["sacreBLEU"]["signature"]

    sources, references = zip(*pairs[2030:2060])
    (tmp_path / "input.txt").write_text("\n".join(sources) + "\n", "utf-8")
    call("translate", run, f"--input={tmp_path}/input.txt", f"--output={tmp_path}/out.txt").succeeded_with_warnings()
    outputs = (tmp_path / "out.txt").read_text("utf-8").splitlines()
    assert sum(output == reference for output, reference in zip(outputs, references, strict=True)) > 10

    call("export", run, "--format=saved_model", f"--output_dir={tmp_path}/saved").succeeded_with_warnings()
    import tensorflow as tf

    model = tf.saved_model.load(f"{tmp_path}/saved")
    found = model.signatures["serving_default"](tf.constant(sources[:5]))["outputs"].numpy()
    assert [text.decode() for text in found] == outputs[:5]
