"""Test that a small model with any seed learns a task that requires attention, positions, masks and search."""

import pytest

import keras_transformer as kt


@pytest.mark.backend
def test_model_learns_to_reverse_unseen_sequences(fresh_seed, tmp_path):
    """Learn to reverse sequences of up to 4 symbols. β2 is larger than in the paper, because the batches are small."""
    problem = kt.problem("reverse", data_dir=tmp_path, num_symbols=8, longest=4, train_pairs=3000)
    hparams = kt.HParams(
        num_layers=1, d_model=48, d_ff=96, num_heads=4, dropout=0, learning_rate_scale=0.2, warmup_steps=100,
        adam_beta_2=0.999, batch_tokens=384, train_steps=700, extra_length=3, beam_size=2, seed=fresh_seed,
    )  # fmt: skip
    model = kt.Transformer.from_hparams(hparams, problem)
    model.compile(**kt.compile_arguments(hparams))
    model.fit(problem.batches("train", hparams), steps_per_epoch=hparams.train_steps, epochs=1, verbose=0)
    sources, references = zip(*problem.examples("test"))
    outputs = [best.text for (best, *_) in kt.Translator(model, problem, hparams).translate(sources)]
    exact = problem.score(outputs, references)[-1]
    print(exact)
    assert exact.name == "exact match" and exact.value >= 90
