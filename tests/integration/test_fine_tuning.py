"""Tests of `train --init_from`, which starts from the weights of another run and copies embeddings by piece."""

import contextlib

import keras
import numpy as np
import pytest
from helpers.commands import write_text
from helpers.languages import toy_pairs
from helpers.logs import logged_lines
from helpers.marian import write_marian
from helpers.quick import quick_runs

import keras_transformer as kt
from keras_transformer.pretrained.huggingface import read_marian
from keras_transformer.runs.run import Run
from keras_transformer.training.finetune import check_settings, initialise
from keras_transformer.training.trainer import train_model

HPARAMS = kt.HParams(
    num_layers=1, d_model=16, d_ff=16, num_heads=2, batch_tokens=32, warmup_steps=10, train_steps=2, eval_steps=50,
    beam_size=1, extra_length=2, ema_decay=0.5, norm="pre", model="word_aligned_transformer",
)  # fmt: skip
# With a learning rate near zero, the weights keep their initial values.
STILL = HPARAMS.replace(learning_rate_scale=1e-30, seed=7, ema_decay=None, train_steps=1)
TABLE, STARTS = "transformer/embedding/table", "transformer/word_starts"


def problem(folder, num_symbols):
    return kt.problem("reverse", data_dir=folder / "data", num_symbols=num_symbols, longest=4, train_pairs=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder for the runs of all tests in this file."""
    with quick_runs():
        yield tmp_path_factory.mktemp("fine_tuning")


@pytest.fixture(scope="module")
def source(folder):
    """Return the run that provides the initial weights of the other runs."""
    return train_model(problem(folder, 5), HPARAMS, folder / "source")


def start(folder, name, source, num_symbols, hparams=STILL, checkpoint=None):
    init_from = source and {"run": str(source.path), "checkpoint": checkpoint}
    return train_model(problem(folder, num_symbols), hparams, folder / name, init_from=init_from)


def weights(run, checkpoint="last"):
    """Return the weights of a checkpoint, without the states of seed generators, as {path: array}."""
    arrays = run.checkpoints.load(checkpoint)[0]["weights"]
    return {path: array for path, array in arrays.items() if array.dtype.kind == "f"}


@pytest.mark.parametrize("checkpoint", [None, "ema"])
def test_init_from_copies_all_weights_of_same_vocabulary(folder, source, checkpoint):
    with logged_lines() as said:
        run = start(folder, f"same-{checkpoint}", source, 5, checkpoint=checkpoint)
    expected = weights(source, checkpoint)
    for path, array in weights(run).items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)
    assert any("at step 2; 9 of the 9 tokens in the new vocabulary" in line for line in said)
    assert run.checkpoints.load("last")[1]["step"] == 1  # steps count from zero again


def test_init_from_maps_embeddings_by_piece(folder, source):
    run = start(folder, "larger", source, 7)
    expected, found = weights(source), weights(run)
    pieces, old_pieces = (each.tokenizer.pieces(range(each.tokenizer.vocab_size)) for each in (run, source))
    assert len(pieces) == len(old_pieces) + 2
    initial = keras.ops.convert_to_numpy(kt.Transformer(len(pieces), STILL).embedding.table.value)
    for number, piece in enumerate(pieces):
        row = expected[TABLE][old_pieces.index(piece)] if piece in old_pieces else initial[number]
        np.testing.assert_array_equal(found[TABLE][number], row, err_msg=piece)
    np.testing.assert_array_equal(found.pop(STARTS), run.tokenizer.word_starts)  # computed from the new vocabulary
    for path, array in found.items():
        if path != TABLE:
            np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_init_from_rejects_another_size(folder, source):
    other = STILL.replace(d_model=32, num_heads=4, num_decoder_layers=2)
    said = r"--init_from=.*source: .* but d_model differs. Add --d_model=16 --num_heads=2 --num_decoder_layers=1\.$"
    with pytest.raises(kt.UserError, match=said):
        start(folder, "wider", source, 5, hparams=other)
    assert not (folder / "wider").exists()


@pytest.mark.parametrize(
    "old, new, said",
    [
        (
            {"norm": "post"}, {"model": "transformer", "norm": "pre"},
            r"norm differs\. Add --norm=post --model=word_aligned_transformer\.$",
        ),
        ({}, {"model": "transformer"}, None),
        (
            {"encoder_attention": "additive"}, {"encoder_attention": "restricted", "attention_window": 3},
            r"encoder_attention differs\. Add --encoder_attention=additive --attention_window=none\.$",
        ),
        ({"positions": "learned", "max_length": 9}, {"positions": "learned"}, r"max_length .* Add --max_length=9\.$"),
        ({}, {"encoder_attention": "restricted", "attention_window": 3, "max_length": 9}, None),
        (
            {"d_model": 10, "num_heads": 4, "d_k": 3, "d_v": 3}, {},
            r"d_model differs\. Add --d_model=10 --num_heads=4 --num_decoder_layers=1 --d_k=3 --d_v=3\.$",
        ),
    ],
)  # fmt: skip
def test_check_settings_names_flags(tmp_path, old, new, said):
    problem_of_run = kt.problem("reverse", data_dir=tmp_path)
    run = Run.configure(tmp_path / "run", problem_of_run, "", HPARAMS.replace(**old))
    with pytest.raises(kt.UserError, match=said) if said else contextlib.nullcontext():
        check_settings(run, HPARAMS.replace(**new))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"encoder_attention": "additive"}, "the run has no weight transformer/encoder/.*score"),
        ({"norm": "post"}, "the new model has no weight transformer/decoder/final_norm/"),
    ],
)
def test_init_from_rejects_missing_parts(source, changes, said):
    model = kt.Transformer.from_hparams(STILL.replace(**changes), vocab_size=source.tokenizer.vocab_size)
    with pytest.raises(kt.UserError, match=said):
        initialise(model, source.tokenizer, {"run": source.path, "checkpoint": "last"})


def test_init_from_resumes_and_rejects_another_source(folder, source):
    start(folder, "again", source, 5)
    more = STILL.replace(train_steps=2)
    for run in (start(folder, "again", source, 5, more), start(folder, "again", None, 5, more)):
        assert run.config["init_from"]["run"] == str(source.path)
    with pytest.raises(kt.UserError, match="init_from"):
        start(folder, "again", source, 5, more, checkpoint="ema")
    with pytest.raises(kt.UserError, match="init_from"):
        start(folder, "source", source, 5, HPARAMS)


def test_init_from_rejects_missing_run_or_checkpoint(folder, source, call, tmp_path):
    settings = ("--problem=reverse", "--hparams=toy", f"--data_dir={folder}/data", f"--output_dir={tmp_path}/run")
    call("train", *settings, f"--init_from={tmp_path}/none").refused(f"{tmp_path}/none is not a run directory")
    call("train", *settings, f"--init_from={source.path}", "--init_checkpoint=averaged").refused(
        "averaged does not exist"
    )
    call("train", *settings, "--init_checkpoint=last").refused("needs --init_from=RUN")
    assert not (tmp_path / "run" / "config.json").exists()


def test_init_from_continues_a_converted_model(call, tmp_path, fresh_seed):
    """Convert a Marian model, fine-tune it, and export it as a Marian model again."""
    write_marian(tmp_path / "marian", fresh_seed)
    converted, tuned = (f"--{name}={tmp_path}/converted" for name in ("output_dir", "init_from"))
    call("convert", "--from=huggingface", f"--model={tmp_path}/marian", converted).succeeded()
    pairs = toy_pairs("tr", fresh_seed)[:60]
    text = {language: "".join(f"{pair[side]}\n" for pair in pairs) for side, language in enumerate(("en", "tr"))}
    sizes = ("--num_layers=2", "--num_decoder_layers=1", "--d_model=8", "--d_ff=12", "--num_heads=2")
    flags = (
        *write_text(tmp_path / "text", text), "--set=problem.target=tr", "--hparams=opus_mt", tuned, *sizes,
        f"--set=problem.vocab_file={tmp_path}/converted/marian_tokenizer.json", "--eval_steps=5", "--best_metric=nll",
        "--decode_steps=10", "--batch_tokens=800", "--beam_size=1", "--warmup_steps=3", "--extra_length=1",
    )  # fmt: skip
    with quick_runs():
        still = "--learning_rate_scale=1e-30", "--train_steps=1", f"--output_dir={tmp_path}/still"
        call("train", *flags, *still).succeeded_with_warnings()
        call("train", *flags, "--train_steps=10", f"--output_dir={tmp_path}/tuned").succeeded_with_warnings()
    first, still, run = (Run.open(tmp_path / name) for name in ("converted", "still", "tuned"))
    for path, array in weights(first).items():
        np.testing.assert_array_equal(weights(still)[path], array, err_msg=path)
    assert run.tokenizer.fingerprint == first.tokenizer.fingerprint
    nll = [line["nll"] for each in (still, run) for line in each.metrics() if line["kind"] == "validation"]
    assert nll[0] > nll[1] > nll[2]
    call("export", f"--run={run.path}", "--format=huggingface", f"--output_dir={tmp_path}/again").succeeded()
    exported = read_marian(tmp_path / "again").weights
    for path, array in weights(run, "best").items():
        np.testing.assert_array_equal(exported[path.partition("/")[2]], array, err_msg=path)
