"""End-to-end tests of all commands with a very small run, and tests of their error messages."""

import functools
import gzip
import json
import resource
import shutil

import numpy as np
import pytest
from helpers.commands import SMALL, TEXT, start, write_text

from keras_transformer.data.corpus import read_lines
from keras_transformer.decoding.translator import Hypothesis, Translator
from keras_transformer.runs.run import Run
from keras_transformer.tasks.problem import load_problem

pytestmark = pytest.mark.usefixtures("eager")

LINES = ["s1 s2 s3", "", "s4", "   ", "s5 s6 unknown", "s7"]


def translate(call, run, folder, *flags, lines=LINES):
    """Run `translate` and return the lines that it writes."""
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    files = (f"--input={folder}/lines.txt", f"--output={folder}/output.txt")
    assert call("translate", f"--run={run}", *files, *flags).succeeded() == []
    return list(read_lines(folder / "output.txt"))


def damage(run, step):
    path = run / "checkpoints" / f"step-{step:09}" / "weights.npz"
    path.write_bytes(path.read_bytes()[:-100])
    return path


# From training to translation


def test_train_prints_its_progress_on_stdout_only(home):
    lines = home.outcome.succeeded()
    for beginning in ("preparing reverse", "validation at step 3", "step 6/6", "validation at step 6"):
        assert any(line.startswith(beginning) for line in lines)
    assert lines[-1].endswith("evaluate it with python -m keras_transformer.evaluate --run=runs/reverse-toy")


def test_run_directory_is_complete(home):
    files = {str(path.relative_to(home.run)) for path in home.run.rglob("*")}
    assert {"config.json", "manifest.json", "metrics.jsonl", "symbols.txt", "checkpoints/best.json"} <= files
    assert Run.open(home.run).checkpoints.steps() == [3, 6]
    assert {row["kind"] for row in Run.open(home.run).metrics()} == {"start", "train", "validation", "checkpoint"}


def test_train_has_nothing_to_do_when_finished(home, call):
    for flags in ((), ("--dry_run",)):
        (line,) = call("train", *home.again(), *flags).succeeded()
        assert line.startswith(
            f"{home.run} finished after 6 updates, so there is nothing to do. Continue training with "
        )
        assert line.endswith(
            f"--train_steps above 6, or evaluate it with python -m keras_transformer.evaluate --run={home.run}"
        )


def test_train_has_nothing_to_do_when_ended_early(home, call, copied):
    run = Run.open(copied)
    run.checkpoints.mark_best(3, {"score": 100.0, "nll": 0.0})
    more = ("--train_steps=60", "--patience=1")
    (line,) = call("train", *home.again(copied), *more).succeeded()
    assert f"{copied} stopped early after 6 updates" in line
    assert "Continue training with a larger --patience or --patience=none, or evaluate it with python -m " in line


def test_train_resumes_with_more_steps(home, copied, call):
    lines = call("train", *home.again(copied), "--train_steps=7").succeeded()
    assert "  resuming after update 6" in lines
    assert sum(line.startswith("step ") for line in lines) == 1
    assert Run.open(copied).checkpoints.steps() == [3, 6, 7]
    assert Run.open(copied).hparams.train_steps == 7


def test_train_repeats_updates_of_damaged_checkpoint(home, copied, call):
    path = damage(copied, 6)
    lines = call("train", *home.again(copied)).succeeded()
    assert any(f"{path} is missing or damaged" in line and "using the previous checkpoint" in line for line in lines)
    assert "  resuming after update 3" in lines
    found, expected = (Run.open(run).checkpoints.load(6)[0]["weights"] for run in (copied, home.run))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def test_evaluate_ends_with_main_score(home, call, tmp_path):
    places = (f"--output_dir={tmp_path}/outputs", f"--results={tmp_path}/results.jsonl")
    lines = call("evaluate", f"--run={home.run}", "--split=test", "--samples=2", *places).succeeded()
    score = lines[-1].removeprefix("exact match = ")
    assert float(score) >= 0 and score == f"{float(score):.2f}"
    assert sum(line.startswith("reference: ") for line in lines) == 2
    references = list(read_lines(tmp_path / "outputs" / "test.references.txt"))
    assert references == [target for _, target in load_problem("reverse").examples("test")]
    row = json.loads((tmp_path / "results.jsonl").read_text())
    assert (row["problem"], row["split"], row["exact_match"]) == ("reverse", "test", float(score))


def test_evaluate_decodes_several_splits(home, call, tmp_path):
    splits = ("validation", "test")
    flags = (f"--run={home.run}", "--split=validation,test", "--beam_size=1")
    lines = call("evaluate", *flags, f"--output_dir={tmp_path}/outputs").succeeded()
    assert [sum(f" lines of {split} in " in line for line in lines) for split in splits] == [1, 1]
    assert all((tmp_path / "outputs" / f"{split}.outputs.txt").is_file() for split in splits)
    summaries = json.loads(call("evaluate", *flags, "--json").out)
    assert [summary["split"] for summary in summaries] == list(splits)
    call("evaluate", *flags[:1], "--split=test,tset").refused("unknown split 'tset': did you mean test?")
    call("evaluate", *flags, "--compare=other.txt").refused("--compare can be used with only one split")


def test_translate_process_reads_stdin_line_by_line(home):
    outputs = start("translate", f"--run={home.run}", cwd=home.path, input="\n".join(LINES)).succeeded()
    assert_one_for_one(outputs)
    assert outputs == [hypotheses[0].text for hypotheses in Translator.load(home.run).translate(LINES)]


def assert_one_for_one(outputs):
    """Assert that there is one output line for each input line, and that outputs of blank lines are empty."""
    assert len(outputs) == len(LINES)
    assert not any(output for output, line in zip(outputs, LINES) if not line.strip())


def test_translate_uses_chosen_checkpoint(copied, call, tmp_path):
    assert "steps 3, 6" in call("average", f"--run={copied}", "--last=2").succeeded()[-1]
    for name in ("averaged", "best", "last", "3"):
        expected = [found[0].text for found in Translator.load(copied, name).translate(LINES)]
        assert translate(call, copied, tmp_path, f"--checkpoint={name}") == expected


def test_checkpoint_names_select_the_right_weights(copied, call):
    call("average", f"--run={copied}", "--last=2", "--scores=off").succeeded()
    checkpoints = Run.open(copied).checkpoints
    names = ("3", "6", "last", "best", "averaged", None)
    three, six, last, best, averaged, default = (
        checkpoints.load(name)[0]["weights"]["transformer/embedding/table"] for name in names
    )
    assert not np.allclose(three, six)
    np.testing.assert_array_equal(last, six)
    np.testing.assert_array_equal(best, default)
    np.testing.assert_array_equal(best, {3: three, 6: six}[checkpoints.best_step()])
    np.testing.assert_allclose(averaged, (three + six) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("evaluate", ["--split=validation"]),
        ("translate", ["--input={}/lines.txt"]),
        ("export", ["--format=keras", "--output_dir={}/export"]),
        ("export", ["--format=saved_model", "--output_dir={}/export"]),
        ("export", ["--format=ctranslate2", "--output_dir={}/export"]),
    ],
)
def test_commands_warn_once_of_outdated_average(copied, call, tmp_path, monkeypatch, command, flags):
    (tmp_path / "lines.txt").write_text("s1 s2\n")
    outputs = [Hypothesis("s1", (4,), 0.0, 0.0)]
    monkeypatch.setattr(Translator, "translate", lambda self, texts, *_, **__: [outputs for _ in texts])
    monkeypatch.setattr(Translator, "score", lambda self, texts, _: [outputs[0] for _ in texts])
    monkeypatch.setattr("keras_transformer.exports.saved_model.export_saved_model", lambda *_, **__: None)
    call("average", f"--run={copied}", "--last=2", "--scores=off").succeeded()
    checkpoints = Run.open(copied).checkpoints
    checkpoints.save(9, *checkpoints.load("last"))
    flags = [f"--run={copied}", "--checkpoint=averaged", *(flag.format(tmp_path) for flag in flags)]
    outcome = call(command, *flags)
    (line,) = [line for line in outcome.err.splitlines() if "averaged" in line]
    assert "the last checkpoint is from step 9" in line and line.endswith(f"average --run={copied}")
    assert (outcome.status, outcome.out == "") == (0, False)


def test_translate_keeps_blank_lines_and_reads_gzip(home, call, tmp_path):
    plain = translate(call, home.run, tmp_path)
    assert plain == [hypotheses[0].text for hypotheses in Translator.load(home.run).translate(LINES)]
    (tmp_path / "lines.gz").write_bytes(gzip.compress((tmp_path / "lines.txt").read_bytes()))
    assert call("translate", f"--run={home.run}", f"--input={tmp_path}/lines.gz").succeeded() == plain


def test_translate_skips_damaged_checkpoint(home, copied, call, tmp_path):
    path = damage(copied, 6)
    (tmp_path / "lines.txt").write_text("s1 s2\ns3\n")
    flags = (f"--run={copied}", f"--input={tmp_path}/lines.txt")
    status, out, err = call("translate", *flags, "--checkpoint=last")
    assert (status, out) == call("translate", *flags, "--checkpoint=3")[:2]
    assert out.count("\n") == 2 and err.count("\n") == 1 and f"{path} is missing or damaged" in err
    call("translate", *flags, "--checkpoint=6").refused(path)


def test_commands_run_on_parallel_text(call, tmp_path):
    flags = (*write_text(tmp_path / "text", TEXT), "--set=problem.vocab_size=40", *SMALL)
    call("train", *flags, "--hparams=toy", "--train_steps=2", f"--output_dir={tmp_path}/run").succeeded()
    lines = call("evaluate", f"--run={tmp_path}/run", "--split=validation").succeeded()
    assert lines[-1].startswith("sacreBLEU = ") and "15 lines of validation" in lines[0]
    assert len(translate(call, tmp_path / "run", tmp_path, lines=["en 1 1", "", "日本"])) == 3
    call("evaluate", f"--run={tmp_path}/run", "--split=test").refused("unknown split 'test'")


# Bad corpora

HALF_GZIP = gzip.compress(bytes(range(48, 122)) * 500)[:-9]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, ["train.en does not exist"]),
        ({"en": "", "de": ""}, ["train.en is empty"]),
        ({"en": TEXT["en"], "de": "eins\n"}, ["train.de must have the same number of lines, got 300 and 1;"]),
        ({"en": TEXT["en"], "de": b"gut\n" * 6 + b"sch\xf6n\n" + b"gut\n" * 293}, ["train.de:7: not UTF-8 at byte 4"]),
        ({"en.gz": HALF_GZIP, "de": TEXT["de"]}, ["train.en.gz", "is truncated"]),
        ({"en.gz": b"plain", "de": TEXT["de"]}, ["train.en.gz", "not a valid compressed file"]),
        ({"en": "a\n" * 9, "de": "b\n" * 9}, ["9 pairs are too few", "add validation.en"]),
        (TEXT, ["at most", "--set problem.vocab_size=N"]),  # the default vocabulary size is 8000
    ],
)
def test_prepare_rejects_bad_corpus_and_leaves_nothing(call, tmp_path, content, said):
    call("prepare", *write_text(tmp_path / "text", content)).refused(*said)
    assert not list((tmp_path / "data").glob("*"))


def test_processes_report_errors_in_one_sentence(tmp_path):
    start("prepare", *write_text(tmp_path / "text", {"en": TEXT["en"]}), cwd=tmp_path).refused("train.de")
    start("train", "--problem=revers", cwd=tmp_path).refused("did you mean reverse")
    start("evaluate", "--run=runs/none", cwd=tmp_path).refused("runs/none is not a run directory")
    assert not (tmp_path / "runs").exists()


# Bad flags


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--problem=revers", "unknown problem 'revers': did you mean reverse"),
        ("--hparams=tny", "unknown hparams 'tny': did you mean tiny"),
        ("--model=transfomer", "unknown model 'transfomer': did you mean transformer"),
        ("--warmup=5", "unknown flag --warmup: did you mean --warmup_steps"),
        (
            "--set=train_pairs=5",
            "train_pairs is a field of the problem, not of the hparams. Use --set problem.train_pairs=5",
        ),
        ("--set=warmup=5", "unknown hparams field 'warmup': did you mean warmup_steps"),
        ("--set=problem.train_pair=5", "unknown problem reverse field 'train_pair': did you mean train_pairs"),
        ("--set=dropout", "--set must be NAME=VALUE, got dropout"),
        ("--set=problem.longest=x", "longest must be an integer, got 'x'"),
        ("--d_model=1e3", "d_model must be an integer, got '1e3'"),
        ("--dropout=2", "dropout must be from 0 to 0.99, got 2.0"),
        ("--num_heads=3", "d_model must be divisible by num_heads, got d_model=16 and num_heads=3"),
        ("--strategy=many", "--strategy: invalid choice: 'many'"),
        ("--accumulate=0", "--accumulate: must be from 1 to "),
        ("--batch_tokens=8", "batch_tokens=8 is too small for pair"),
        ("--max_length=1", "max_length=1 drops all 500 sentence pairs"),
        ("--best_metric=chrf", "best_metric must be score, nll or loss for reverse, got chrf"),
        ("--dropout", "--dropout: expected one argument"),
        ("train", "arguments must have the form --FLAG=VALUE, got 'train'"),
    ],
)
def test_train_rejects_wrong_flags(home, call, tmp_path, flag, said):
    call("train", *home.again(tmp_path / "run"), flag).refused(said)
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        ("translate", "--beam_size=x", "--beam_size: must be an integer, got 'x'"),
        ("translate", "--alpha=nan", "--alpha: must be from 0 to 10, got 'nan'"),
        ("evaluate", "--checkpoint=lst", "must be best, last, averaged, ema or a step, got 'lst'"),
        ("evaluate", "--checkpoint=4", "available steps: 3, 6"),
        ("evaluate", "--checkpoint=averaged", "create it with python -m keras_transformer.average"),
        ("average", "--last=0", "--last: must be from 1 to"),
    ],
)
def test_later_commands_reject_wrong_flags(home, call, command, flag, said):
    call(command, f"--run={home.run}", flag).refused(said)


@pytest.mark.parametrize("flag", ["--train_steps=6", "--dry_run"])
def test_train_checks_validation_batches_first(call, tmp_path, flag):
    text = write_text(tmp_path / "text", TEXT)
    long = {language: "a b c\n" + 40 * f"{language} " + "\n" for language in TEXT}
    write_text(tmp_path / "text", long, "validation")
    flags = (*text, "--set=problem.vocab_size=40", *SMALL, "--hparams=toy", f"--output_dir={tmp_path}/run", flag)
    call("train", *flags, "--batch_tokens=32").refused("the validation split: batch_tokens=32 is too small for pair 2")
    assert not (tmp_path / "run" / "config.json").exists()
    if flag == "--dry_run":
        call("train", *flags, "--batch_tokens=512").succeeded_with_warnings()


def test_error_hints_name_flags_of_the_command(home, call, tmp_path):
    run = shutil.copytree(home.run, tmp_path / "run")
    (run / "checkpoints" / "best.json").unlink()
    begin = (*home.again(tmp_path / "new"), f"--init_from={run}")
    call("train", *begin).refused("none was evaluated; use --init_checkpoint=last")
    (run / "checkpoints" / "step-000000003" / "weights.npz").write_bytes(b"damaged")
    outcome = call("average", f"--run={run}", "--last=2", "--scores=off")
    outcome.refused("step-000000003")
    assert "--checkpoint" not in outcome.err
    call("train", *begin, "--init_checkpoint=3").refused("; --init_checkpoint=6 is complete")
    shutil.rmtree(run / "checkpoints")
    call("average", f"--run={run}").refused("has no checkpoint")


@pytest.mark.parametrize("command", ["evaluate", "translate", "average"])
def test_later_commands_require_a_run(call, tmp_path, command):
    call(command).refused("the following arguments are required: --run")
    (tmp_path / "lines.txt").write_text("s1\n")
    more = [f"--input={tmp_path}/lines.txt"] if command == "translate" else []
    call(command, f"--run={tmp_path}/none", *more).refused(f"{tmp_path}/none is not a run directory")
    call(command, f"--run={tmp_path}", *more).refused(f"{tmp_path} is not a run directory")


def test_evaluate_rejects_run_without_checkpoints(copied, call):
    shutil.rmtree(copied / "checkpoints")
    call("evaluate", f"--run={copied}").refused("has no checkpoint")


# Bad paths


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--problem=copy", "problem.name=reverse, not copy"),
        ("--hparams=tiny", "preset=toy, not tiny"),
        ("--dropout=0.25", "hparams.dropout=0.1, not 0.25"),
        ("--set=problem.longest=9", "problem.parameters.longest=10, not 9"),
        ("--seed=2", "hparams.seed=1, not 2"),
    ],
)
def test_train_rejects_other_settings_for_a_run(home, call, flag, said):
    before = (home.run / "config.json").read_bytes()
    call("train", *home.again(), flag).refused(home.run, said, "choose another --output_dir")
    assert (home.run / "config.json").read_bytes() == before


def test_train_leaves_foreign_files_unchanged(home, call, tmp_path):
    (tmp_path / "file").write_text("mine")
    call("train", *home.again(tmp_path)).refused(f"{tmp_path} exists and is not a run directory")
    assert_only_file(tmp_path)


def assert_only_file(folder):
    """Assert that a folder contains only the user's file, and that this file is unchanged."""
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("file", "mine")]


def test_run_killed_during_creation_can_be_created(home, tmp_path):
    run = Run.open(home.run)
    for name in ("symbols.txt", ".config.json.x7"):  # files that a killed process may leave
        shutil.copy(home.run / "symbols.txt", tmp_path / name)
    Run.configure(tmp_path, run.problem, "toy", run.hparams).create()
    assert Run.open(tmp_path).config == run.config


@pytest.mark.parametrize("flag", ["--output_dir={}", "--output_dir={}/run", "--data_dir={}", "--data_dir={}/data"])
def test_train_names_blocking_file(home, call, tmp_path, flag):
    (tmp_path / "file").write_text("mine")
    call("train", *home.again(tmp_path / "run"), flag.format(tmp_path / "file")).refused(tmp_path / "file")
    assert_only_file(tmp_path)


@pytest.mark.parametrize("flag", ["--output={}", "--output={}/file/x"])
def test_translate_names_unwritable_output(home, call, tmp_path, flag):
    (tmp_path / "file").write_text("mine")
    call("translate", f"--run={home.run}", flag.format(tmp_path), f"--input={tmp_path}/file").refused(tmp_path)
    assert_only_file(tmp_path)


def test_failed_evaluation_leaves_no_empty_results(home, call, tmp_path):
    call("evaluate", f"--run={home.run}", "--checkpoint=99", f"--results={tmp_path}/rows.jsonl").refused("99")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--results", "--output_dir"])
def test_evaluate_checks_outputs_before_decoding(home, call, tmp_path, monkeypatch, flag):
    monkeypatch.setattr("keras_transformer.decoding.evaluation.evaluate", None)
    (tmp_path / "file").write_text("mine")
    call("evaluate", f"--run={home.run}", f"{flag}={tmp_path}/file/x").refused(f"cannot write {tmp_path}/file/x")
    assert_only_file(tmp_path)


def test_translate_keeps_old_output_after_bad_line(home, call, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.translate.CHUNK", 2)
    (tmp_path / "lines.txt").write_bytes(b"s1\n" * 3 + b"\xff\n")
    (tmp_path / "output.txt").write_text("old\n")
    flags = (f"--input={tmp_path}/lines.txt", f"--output={tmp_path}/output.txt")
    call("translate", f"--run={home.run}", *flags).refused(f"{tmp_path}/lines.txt:4: not UTF-8")
    assert (tmp_path / "output.txt").read_text() == "old\n"
    partial = (tmp_path / "output.txt.partial").read_text()  # translations of the lines before the invalid line
    assert partial.count("\n") == 3 and len(list(tmp_path.iterdir())) == 3


def test_prepare_reports_full_disk_and_leaves_nothing(tmp_path):
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    start("prepare", "--problem=copy", cwd=tmp_path, preexec_fn=limit).refused("File too large; free some space")
    assert not list((tmp_path / "data").iterdir())
