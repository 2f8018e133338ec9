"""A training run from corpus to last checkpoint; repeated, it goes on where it stopped."""

import contextlib
import dataclasses
import math
import time

from keras_transformer.distributed.in_memory_run import InMemoryRun, state_of
from keras_transformer.distributed.strategy import (
    check_rows,
    count_accelerators,
    make_strategy,
)
from keras_transformer.distributed.workers import join
from keras_transformer.runs.checkpoint import assign_training, model_arrays
from keras_transformer.runs.manifest import make_manifest, versions
from keras_transformer.runs.run import Run
from keras_transformer.runs.summary import summary_lines, training_summary
from keras_transformer.training.callbacks import (
    CheckpointCallback,
    EarlyStopping,
    ProgressLogger,
    StepCallbacks,
    ValidationCallback,
    ended_early,
)
from keras_transformer.training.finetune import INIT_FLAG, complete, initialise
from keras_transformer.training.hardware import device_rate
from keras_transformer.training.memory import check_weights, memory_errors
from keras_transformer.training.model_building import build_model
from keras_transformer.training.nonfinite import NonFinite
from keras_transformer.training.options import TrainOptions
from keras_transformer.training.signals import SharedStop, stop_request
from keras_transformer.training.summary import overview
from keras_transformer.utils.errors import UserError, shell_flag
from keras_transformer.utils.progress import progress_bar
from keras_transformer.utils.timing import duration


def train_model(
    problem, hparams, output_dir, options=None, *, preset="", init_from=None, dry_run=False,
    report=print,
):  # fmt: skip
    """Train a model on a problem in a run directory, or resume the run that is there.

    Args:
        problem: `Problem`; prepared first if necessary.
        hparams: `HParams`.
        output_dir: The run directory.
        options: `TrainOptions`, which may differ when the run resumes.
        preset: Registered name of the hparams, for the record.
        init_from: {"run": directory, "checkpoint": name, or None for the best} of another run, whose weights a new run
            starts from; see `finetune`.
        dry_run: Whether to stop after the summary of the run. Only the prepared corpus is written.
        report: Called with each line of progress.

    Returns:
        The `Run`.

    Raises:
        UserError: The directory holds another run, or another process trains in it, or it cannot be written; a corpus
            file is invalid; training ran out of memory; or updates are not finite.
        WorkerLost: Another worker is missing.
        Interrupted: SIGTERM or SIGINT arrived; a checkpoint of the last update is written.
    """
    options = options or TrainOptions()
    workers = join(options.strategy, options.devices, options.coordinator, options.worker_patience, report)
    if not workers.is_chief:
        report(f"worker {workers.number} of {workers.count} trains along; worker 0 reports")
        report = _silently
    with workers.leaving():
        init_from = complete(init_from)
        run = Run.configure(output_dir, problem, preset, hparams, init_from)
        if init_from and not run.checkpoints.steps():  # what is wrong with it is said before the corpus is prepared
            Run.open(init_from["run"]).checkpoints.load(init_from["checkpoint"], parts=(), flag=INIT_FLAG)
        batches = problem.prepare(report).batches("train", hparams)
        workers.watch()
        check_weights(hparams, problem.tokenizer.vocab_size)
        if dry_run:
            if workers.is_chief:
                run.check_corpus()
            _dry_run(run, problem, hparams, batches, options, workers, report)
            return run
        with run.locked() if workers.is_chief else contextlib.nullcontext(), stop_request() as stop:
            # Another process may have made it while the corpus was prepared.
            run = Run.configure(output_dir, problem, preset, hparams, init_from)
            if workers.is_chief:
                run.check_corpus()
            if workers.count > 1:
                stop = SharedStop(stop, workers)
            with workers.together():
                state = workers.broadcast(state_of(run) if workers.is_chief else None)
                if not workers.is_chief:
                    run = InMemoryRun(run.path, state["config"], state)
                run.checkpoints.report = report
                _train(run, problem, hparams, batches, options, stop, workers, report)
    return run


def _dry_run(run, problem, hparams, batches, options, workers, report):
    """Print the summary of what would be trained."""
    _validation_batches(problem, hparams, batches, options)
    model, distribution = build_model(run, problem.tokenizer.vocab_size, options)
    start = max(run.checkpoints.steps(), default=0)
    if ended := _finished(run, hparams, start):
        report(ended)
        return
    batches = model.adapted(batches).replace(start=start)
    print_summary(run, problem, model, batches, options, distribution, workers, report)


def _silently(line):
    pass


def _validation_batches(problem, hparams, batches, options):
    """Returns the batches of validation, unless these or those of training, `batches`, cannot be trained with."""
    check_rows(batches.plan, make_strategy(options.strategy, options.devices))
    return problem.batches("validation", hparams)


def _train(run, problem, hparams, batches, options, stop, workers, report):
    """Trains, in a directory that is this process's own."""
    validation = _validation_batches(problem, hparams, batches, options)
    model, distribution = build_model(run, problem.tokenizer.vocab_size, options)
    state = restore(run, model, workers)
    start = batches.start = state["step"]
    if not start:
        if run.config["init_from"]:
            initialise(model, problem.tokenizer, run.config["init_from"], report)
        if hasattr(model, "adopt"):  # a plug-in's model need not
            model.adopt(problem.tokenizer)
    if workers.count > 1:
        store = problem.store.manifest
        workers.check_same(
            {
                "version": versions(),
                "settings": [problem.name, problem.parameters, dataclasses.asdict(hparams), options.update_settings()],
                "vocabulary": problem.tokenizer.fingerprint,
                "corpus": store["files"],
                "first weights": model_arrays(model),
            }
        )
    if not start:  # before there is a run, which would keep as many as it says
        run.checkpoints.check_room(model, hparams.keep_checkpoints)
    run.create()
    batches = model.adapted(batches)

    nonfinite = NonFinite(start, run, hparams, batches, report)
    progress = ProgressLogger(start, run, batches, hparams, model.update_flops, nonfinite, report)
    evaluation = ValidationCallback(start, run, problem, validation, hparams, stop, workers, report)
    checkpointing = CheckpointCallback(
        start, run, hparams, progress, evaluation, stop, workers, state.get("from_signal")
    )
    stopping = EarlyStopping(start, run, hparams, evaluation)
    callbacks = [progress, evaluation, checkpointing, stopping]
    for callback in callbacks:
        callback.set_model(model)
    if start:
        evaluation.evaluate_if_missing(start)
        checkpointing.on_end(start)
    if ended := _finished(run, hparams, start):
        report(ended)
        return
    print_summary(run, problem, model, batches, options, distribution, workers, report)
    run.write_manifest(make_manifest(run, model))  # of whoever makes the updates that follow
    if start:
        run.checkpoints.check_room(model, hparams.keep_checkpoints)
    log_start(run, start, distribution, options.precision)
    began = time.monotonic()
    with (
        memory_errors(options, batch_may_change=not start),
        progress_bar("training", hparams.train_steps, start) as progress.advance,
    ):
        model.fit(
            batches, steps_per_epoch=hparams.train_steps - start, epochs=1, verbose=0,
            callbacks=StepCallbacks(callbacks, add_history=True, model=model),
        )  # fmt: skip
    report_end(report, run, model, progress, time.monotonic() - began)


def _finished(run, hparams, step):
    """Return the sentence for a run with nothing left to do after the checkpoint at `step`, or None."""
    if step >= hparams.train_steps:
        ended, longer = "is finished", f"--train_steps above {step:,}"
    elif ended_early(run, hparams, step):
        ended, longer = "ended early", "a larger --patience, or none,"
    else:
        return None
    return (
        f"{run.path} {ended} after {step:,} updates, so there is nothing to do: {_evaluate(run)} evaluates it, and "
        f"{longer} trains it longer"
    )


def _evaluate(run):
    """Return the command that evaluates a run."""
    return f"python -m keras_transformer.evaluate {shell_flag('run', run.path)}"


def print_summary(run, problem, model, batches, options, distribution, workers, report):
    """Print what is about to be trained."""
    report(f"{run.path}")
    for line in overview(run, problem, model, batches, options, distribution, workers.count):
        report(line)
    if batches.start:
        report(f"  resuming after update {batches.start:,}")


def restore(run, model, workers):
    """Gives the model the newest whole checkpoint, if there is one; returns its state, whose "step" is the updates."""
    arrays, state = (workers.is_chief and run.checkpoints.load_latest()) or ({}, None)
    if workers.is_chief and state is None and run.checkpoints.steps():
        raise UserError(f"no checkpoint in {run.checkpoints.path} is whole; remove them to begin anew")
    state = workers.broadcast(state)
    if state is None:
        return {"step": 0}
    what = f"the checkpoint of step {state['step']} in {run.path}"
    arrays = {part: workers.broadcast_arrays(arrays.get(part)) for part in workers.broadcast(sorted(arrays))}
    if "optimizer" not in arrays:
        raise UserError(f"{what} holds no optimizer state; training cannot resume from it")
    assign_training(model, arrays, what)
    return state


def log_start(run, start, distribution, precision):
    """Logs what is computed in, and what the devices can do, which the cost by the paper's method is computed from."""
    devices = count_accelerators(distribution) or 1
    run.log(kind="start", step=start, precision=precision, devices=devices, device_flops_per_second=device_rate())


def report_end(report, run, model, progress, seconds):
    """Says what came out."""
    best = run.checkpoints.best()
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    report(
        f"trained {parameters:,} parameters with {progress.step - progress.start:,} updates on "
        f"{progress.tokens:,} tokens in {duration(seconds)}"
    )
    for line in summary_lines(training_summary(run.metrics())):
        report(line)
    if best:
        metric = run.hparams.best_metric
        if best.get(metric) is None:
            found = f"without a finite {metric}"
        else:
            found = f"{metric} {best[metric]:.2f}" if metric == "score" else f"{metric} {best[metric]:.4f}"
        report(f"best validation {found} at step {best['step']:,}")
    report(f"everything is in {run.path}; next: {_evaluate(run)}")
