"""Tests that a small model trained with placeholders copies unseen addresses and marked spans, with all engines."""

import json
import random

import pytest
from helpers.sharing import shared_folder

import keras_transformer as kt
from keras_transformer import train
from keras_transformer.data.placeholders import SPAN
from keras_transformer.server.engines import load_engine

NOUNS = {"dog": "Hund", "man": "Mann", "king": "König"}
VERBS = {"opens": "öffnet", "reads": "liest", "sees": "sieht"}
ADVERBS = {"now": "jetzt", "today": "heute", "there": "dort"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def new_address(rng):
    name, path = ("".join(rng.choices(LETTERS, k=rng.randint(2, 6))) for _ in range(2))
    return rng.choice(
        [f"www.{name}.org/{path}", f"https://{name}.com/{path}?x={rng.randint(0, 999)}", f"{path}@{name}.net"]
    )


def new_pair(rng, count):
    """Return a random English sentence with `count` objects, and its German translation in a different word order."""
    noun, verb, adverb = (rng.choice([*words]) for words in (NOUNS, VERBS, ADVERBS))
    objects = [new_address(rng) for _ in range(count)]
    english, german = (f" {word} ".join(objects or [nothing]) for word, nothing in (("and", "it"), ("und", "es")))
    return f"{adverb}, the {noun} {verb} {english}.", f"Der {NOUNS[noun]} {VERBS[verb]} {german} {ADVERBS[adverb]}."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Path of a read-only run that was trained on sentences with zero to two addresses."""

    def make(path):
        rng = random.Random(1)
        for split, size in (("train", 1500), ("validation", 6)):
            pairs = [new_pair(rng, row % 3) for row in range(size)]
            (path / f"{split}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
        train.main([
            "--problem=parallel_text", f"--raw_dir={path}", f"--data_dir={path}/data", "--set=problem.vocab_size=160",
            "--set=problem.placeholders=true", "--hparams=toy", "--num_layers=1", "--d_model=64", "--d_ff=128",
            "--batch_tokens=1024", "--warmup_steps=100", "--train_steps=800", "--eval_steps=800",
            "--checkpoint_steps=800", "--best_metric=loss", "--decode_steps=5000", "--beam_size=2",
            f"--output_dir={path}/run",
        ])  # fmt: skip

    return shared_folder(tmp_path_factory, "placeholders", make) / "run"


def unseen(seed=2, count=40):
    rng = random.Random(seed)
    return [*zip(*(new_pair(rng, 1 + row % 2) for row in range(count)))]


def spans_of(text):
    return [match[0] for match in SPAN.finditer(text)]


def test_model_copies_unseen_addresses(run, call, tmp_path):
    sources, references = unseen()
    (tmp_path / "lines").write_text("\n".join(sources) + "\n", "utf-8")
    lines = call("translate", f"--run={run}", f"--input={tmp_path}/lines").succeeded()
    assert [sorted(spans_of(line)) for line in lines] == [sorted(spans_of(source)) for source in sources]
    right = sum(line == reference for line, reference in zip(lines, references, strict=True))
    print(right, "of", len(lines))
    assert right >= 0.9 * len(lines)


def test_marked_spans_and_placeholders_are_copied(run):
    translator = kt.Translator.load(run)
    text = "now, the dog sees <ph>König & Co.</ph> and <ph7>."
    assert translator.translate(text) == "Der Hund sieht König & Co. und <ph7> jetzt."
    (hypotheses,) = translator.translate([text], nbest=2)
    assert len(hypotheses) == 2 and all(one.text.count("König & Co.") == 1 for one in hypotheses)


def test_score_gives_scores_of_translations(run, call, tmp_path):
    sources, _ = unseen(count=6)
    (tmp_path / "en").write_text("\n".join(sources) + "\n", "utf-8")
    translated = call("translate", f"--run={run}", f"--input={tmp_path}/en", "--format=jsonl").succeeded()
    rows = [json.loads(line) for line in translated]
    best = [row["hypotheses"][0] for row in rows]
    assert [row["source"] for row in rows] == [*sources] and all("<ph1>" in one["tokens"] for one in best)
    (tmp_path / "de").write_text("".join(one["text"] + "\n" for one in best), "utf-8")
    scored = call("score", f"--run={run}", f"--source={tmp_path}/en", f"--target={tmp_path}/de", "--format=jsonl")
    found = [json.loads(line)["score"] for line in scored.succeeded_with_warnings()]
    assert found == pytest.approx([one["score"] for one in best], abs=1e-4)


def test_ctranslate2_copies_spans(run):
    pytest.importorskip("ctranslate2")
    sources, _ = unseen()
    keras, other = (kt.Translator.load(run, engine=engine) for engine in ("keras", "ctranslate2"))
    outputs = [[best.text for (best,) in one.translate(sources)] for one in (keras, other)]
    assert [sorted(spans_of(text)) for text in outputs[1]] == [sorted(spans_of(source)) for source in sources]
    assert sum(map(str.__eq__, *outputs)) >= 0.9 * len(sources)


def test_server_engine_copies_spans(run):
    engine = load_engine(run, engine="keras")
    sources, _ = unseen(count=6)
    for source, (output, *_) in zip(sources, engine.translate(sources, 1), strict=True):
        assert sorted(spans_of(output.text)) == sorted(spans_of(source))
    assert engine.placeholders == 8
    assert engine.lengths(["go www.somewhere.org/else"]) == engine.lengths(["go <ph1>"])


def test_translate_names_the_line_with_too_many_spans(run, call, tmp_path):
    (tmp_path / "lines").write_text("\n" + "<ph>a</ph> " * 9 + "\n")
    message = "line 2 must have at most 8 spans in <ph>…</ph>, got 9. Mark fewer spans, or split the text."
    call("translate", f"--run={run}", f"--input={tmp_path}/lines").refused(message)
    call("score", f"--run={run}", f"--source={tmp_path}/lines", f"--target={tmp_path}/lines").refused(message)
