"""End-to-end tests of a multilingual model: prepare, train, evaluate each direction, translate and export."""

import json

import pytest
from helpers.commands import SMALL
from helpers.sharing import shared_folder

import keras_transformer as kt
from keras_transformer import train
from keras_transformer.runs.run import Run

DIRECTIONS = "en-de,de-en,en-fr"
LANGUAGES = ("en", "de", "fr")
LINES = {"train": 60, "validation": 4, "test": 3}

pytestmark = pytest.mark.usefixtures("eager_module")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the path of a read-only run of two updates on three directions. Its text files are in a sibling folder."""

    def make(path):
        (path / "corpus").mkdir()
        for split, count in LINES.items():
            for language in LANGUAGES:
                lines = "".join(f"{language} {number} {number * number}\n" for number in range(count))
                (path / "corpus" / f"{split}.{language}").write_text(lines)
        train.main([*flags_of(path), "--hparams=toy", *SMALL, "--train_steps=2", f"--output_dir={path}/run"])

    return shared_folder(tmp_path_factory, "multilingual", make) / "run"


def flags_of(folder, directions=DIRECTIONS):
    return (
        "--problem=multilingual_text", f"--raw_dir={folder}/corpus", f"--data_dir={folder}/data",
        "--set=problem.vocab_size=40", f"--set=problem.directions={directions}",
    )  # fmt: skip


def test_validation_logs_scores_of_directions(run):
    (row,) = (row for row in Run.open(run).metrics() if row["kind"] == "validation")
    parts = [row[f"sacreBLEU {name}"] for name in DIRECTIONS.split(",")]
    assert row["score"] == row["sacreBLEU"] == pytest.approx(sum(parts) / 3)
    assert row["signatures"]["sacreBLEU"].startswith("mean of en-de, de-en, en-fr: nrefs:1|")


def test_evaluate_reports_each_direction(run, call, tmp_path):
    lines = call("evaluate", f"--run={run}", f"--output_dir={tmp_path}", "--by_length").succeeded()
    cells = [line.split() for line in lines]
    assert ["direction", "lines", "chrF", "lowercase", "BLEU", "sacreBLEU"] in cells
    assert [row[:2] for row in cells if len(row) == 5 and row[0] != "words"][-4:] == [
        ["en-de", "3"], ["de-en", "3"], ["en-fr", "3"], ["mean", "9"]
    ]  # fmt: skip
    assert "signature of sacreBLEU: mean of en-de, de-en, en-fr: " in "\n".join(lines)
    sources = (tmp_path / "test.sources.txt").read_text().splitlines()
    assert sources[::3] == ["<2de> en 0 0", "<2en> de 0 0", "<2fr> en 0 0"]


def test_evaluate_takes_directions_without_training(run, call, tmp_path):
    out = call("evaluate", f"--run={run}", "--directions=de-fr,fr-de", "--json", f"--results={tmp_path}/rows")
    found, row = json.loads(out.out), json.loads((tmp_path / "rows").read_text())
    assert found["lines"] == 6 and list(found["directions"]) == list(row["directions"]) == ["de-fr", "fr-de"]
    values = [scores["sacreBLEU"]["value"] for scores in found["directions"].values()]
    assert found["scores"]["sacreBLEU"]["value"] == pytest.approx(sum(values) / 2)
    assert row["directions"]["de-fr"].keys() == {"chrf", "lowercase_bleu", "sacrebleu"}
    (tmp_path / "others").write_text("x\n" * 3)
    one = call("evaluate", f"--run={run}", "--directions=de-fr", f"--compare={tmp_path}/others", "--json")
    assert list(json.loads(one.out)["directions"]) == ["de-fr"] and "comparison" in json.loads(one.out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--directions=de-fra"], "unknown target language 'fra': did you mean fr?"),
        (["--directions=it-en"], "unknown source language 'it'"),
        (["--directions=de_fr"], "each direction in problem.directions must name two different languages"),
        (["--compare=others"], "--compare needs one direction, got en-de, de-en, en-fr. Choose one with --directions."),
        (["--paper_bleu"], "--paper_bleu needs one direction"),
    ],
)
def test_evaluate_rejects_directions(run, call, flags, message):
    call("evaluate", f"--run={run}", *flags).refused(message)


def test_evaluate_rejects_directions_of_other_runs(home, call):
    call("evaluate", f"--run={home.run}", "--directions=en-de").refused("--directions needs a run of multilingual_text")


def test_translate_takes_target_language(run, call, tmp_path):
    (tmp_path / "lines").write_text("de 3 9\n\n<2en> de 3 9\n")
    flags = ("translate", f"--run={run}", f"--input={tmp_path}/lines", "--format=jsonl")
    rows = [json.loads(line) for line in call(*flags, "--to=fr").succeeded()]
    assert [row["source"] for row in rows] == ["de 3 9", "", "<2en> de 3 9"]
    translator = kt.Translator.load(run)
    expected = translator.translate(["<2fr> de 3 9", "", "<2en> de 3 9"])
    scores = [[one.score for one in hypotheses] for hypotheses in expected]
    assert [[one["score"] for one in row["hypotheses"]] for row in rows] == [
        pytest.approx(several, rel=1e-5) for several in scores
    ]
    assert scores[0] != scores[2]
    assert translator.translate("de 3 9", to="fr") == expected[0][0].text
    call(*flags).refused("must begin with the tag of its target language, such as <2de>, got 'de 3 9'")
    call(*flags, "--to=frr").refused("unknown target language 'frr': did you mean fr?")
    call(*flags, "--to=fr", "--split_sentences").refused("--split_sentences needs a language")


def test_score_and_augment_take_target_language(run, call, tmp_path):
    (tmp_path / "lines").write_text("de 3 9\n")
    score = ("score", f"--run={run}", f"--source={tmp_path}/lines", f"--target={tmp_path}/lines")
    found = call(*score, "--to=fr")
    (tmp_path / "tagged").write_text("<2fr> de 3 9\n")
    tagged = call("score", f"--run={run}", f"--source={tmp_path}/tagged", f"--target={tmp_path}/lines")
    assert (found.status, found.out) == (0, tagged.out)
    call(*score).refused("must begin with the tag")
    augment = ("augment", f"--run={run}", f"--input={tmp_path}/lines", "--as=forward", f"--output={tmp_path}/out.tsv")
    call(*augment).refused("must begin with the tag")
    call(*augment, "--to=de").succeeded()
    assert all(line.startswith("de 3 9\t") for line in (tmp_path / "out.tsv").read_text().splitlines())


def test_exports_of_tags(run, call, tmp_path):
    pytest.importorskip("safetensors")
    call("export", f"--run={run}", "--format=huggingface", f"--output_dir={tmp_path}/hf").succeeded()
    card = (tmp_path / "hf" / "README.md").read_text()
    assert 'language:\n- "en"\n- "de"\n- "fr"\n' in card
    assert "from `en` to `de`, from `de` to `en` and from `en` to `fr`" in card
    assert 'tokenizer(["<2de> A sentence."]' in card and "target language: `<2de>`, `<2en>`, `<2fr>`." in card
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (config["source_lang"], config["target_lang"]) == ("mul", "mul")
    argos = call("export", f"--run={run}", "--format=argos", f"--output_dir={tmp_path}/argos")
    argos.refused("cannot contain a model with language tags")


def test_prepare_rejects_languages_without_files(run, call):
    folder = run.parent
    before = sorted((folder / "data").iterdir())
    outcome = call("prepare", *flags_of(folder, "en-de,en-fra"))
    assert outcome.status == 2 and outcome.err.endswith("error: unknown language 'fra': did you mean fr?\n")
    assert sorted((folder / "data").iterdir()) == before
