"""Training of a model on a problem, from scratch or from the latest checkpoint of a run."""

import contextlib
import dataclasses
import functools
import logging
import math
import time

import keras

from keras_transformer.distributed.in_memory_run import InMemoryRun, state_of
from keras_transformer.distributed.strategy import check_rows, count_accelerators, make_strategy
from keras_transformer.distributed.workers import join
from keras_transformer.metrics.bleu import TRANSLATION_METRICS
from keras_transformer.models.batch_source import adapt_batches
from keras_transformer.runs.checkpoint import assign_training, model_arrays
from keras_transformer.runs.manifest import make_manifest, versions
from keras_transformer.runs.run import Run
from keras_transformer.runs.totals import summary_lines, training_summary
from keras_transformer.training.callbacks import (
    CheckpointCallback,
    EarlyStopping,
    ProgressLogger,
    StepCallbacks,
    ValidationCallback,
    ended_early,
)
from keras_transformer.training.finetune import INIT_FLAG, check_settings, complete, initialise
from keras_transformer.training.hardware import device_rate
from keras_transformer.training.memory import check_weights, memory_errors
from keras_transformer.training.model_building import build_model
from keras_transformer.training.nonfinite import NonFinite
from keras_transformer.training.options import TrainOptions
from keras_transformer.training.signals import SharedStop, stop_request
from keras_transformer.training.summary import log_summary
from keras_transformer.utils.errors import UserError, shell_flag
from keras_transformer.utils.logs import default_log, silent_log
from keras_transformer.utils.progress import progress_bar
from keras_transformer.utils.timing import duration

logger = logging.getLogger(__name__)


@default_log()
def train_model(problem, hparams, output_dir, options=None, *, preset="", init_from=None, dry_run=False):
    """Train a model on a problem in a run directory, or resume the run in that directory.

    The function logs its progress. If the application has not configured logging, the log goes to stdout.

    Args:
        problem: `Problem`; prepared first if necessary.
        hparams: `HParams`.
        output_dir: The run directory.
        options: `TrainOptions`, which may differ when the run resumes.
        preset: Registered name of the hparams, for config.json.
        init_from: Source of the initial weights, {"run": directory of another run, "checkpoint": name, or None for the
            best}; see `finetune`.
        dry_run: Whether to stop after the summary of the run. A dry run writes nothing but the prepared corpus.

    Returns:
        The `Run`. After training, workers other than the chief return an `InMemoryRun`.

    Raises:
        UserError: The directory is not writable, is in use, or contains other files or a run with different settings.
            The error also occurs if a corpus file is invalid, if training runs out of memory, or if updates are not
            finite.
        WorkerLost: Another worker failed or does not respond.
        Interrupted: SIGTERM or SIGINT arrived. Before raising, the function writes a checkpoint of the last update.
    """
    options = options or TrainOptions()
    configure = functools.partial(Run.configure, output_dir, problem, preset, hparams, complete(init_from))
    workers = join(options.strategy, options.devices, options.coordinator, options.worker_patience)
    if workers.is_chief:
        return _train_as_worker(workers, configure, problem, options, dry_run)
    logger.info(f"worker {workers.number} of {workers.count} has joined the run; worker 0 logs the progress")
    with silent_log():
        return _train_as_worker(workers, configure, problem, options, dry_run)


def _train_as_worker(workers, configure, problem, options, dry_run):
    """Train as one of the `workers`. The function `configure` returns a new or existing `Run` and writes no files."""
    with workers.leaving():
        run = configure()
        hparams = run.hparams
        problem.check_metric(hparams.best_metric)
        if (init_from := run.config["init_from"]) and not run.checkpoints.steps():
            # Report errors before preparing the corpus.
            source = Run.open(init_from["run"])
            source.checkpoints.load(init_from["checkpoint"], parts=(), flag=INIT_FLAG)
            check_settings(source, hparams)
        batches = problem.prepare().batches("train", hparams)
        workers.watch()
        check_weights(hparams, problem.tokenizer.vocab_size)
        if dry_run:
            if workers.is_chief:
                run.check_corpus()
            with memory_errors(options):
                _dry_run(run, problem, batches, options, workers)
            return run
        with run.locked() if workers.is_chief else contextlib.nullcontext(), stop_request() as stop:
            if workers.is_chief:
                run = configure()  # again, because another process may have created the run in the meantime
                run.check_corpus()
            if workers.count > 1:
                stop = SharedStop(stop, workers)
            with workers.together(), memory_errors(options):
                state = workers.broadcast(state_of(run) if workers.is_chief else None)
                if not workers.is_chief:
                    run = InMemoryRun(run.path, state)
                _train(run, problem, hparams, batches, options, stop, workers)
    return run


def _dry_run(run, problem, batches, options, workers):
    """Log the summary of the run that `train_model` would start or resume."""
    check_rows(batches.plan, make_strategy(options.strategy, options.devices))
    problem.batches("validation", run.hparams)  # raises an error if a sentence exceeds batch_tokens
    model, distribution = build_model(run, problem.tokenizer.vocab_size, options)
    start = max(run.checkpoints.steps(), default=0)
    if ended := _finished(run, start):
        logger.info(ended)
        return
    batches = adapt_batches(model, batches).replace(start=start)
    log_summary(run, problem, model, batches, options, distribution, workers.count)


def _train(run, problem, hparams, batches, options, stop, workers):
    """Train in a run directory that the chief has locked.

    `hparams` come from the arguments of this worker, `run.hparams` from those of the chief.
    """
    check_rows(batches.plan, make_strategy(options.strategy, options.devices))
    validation_batches = problem.batches("validation", hparams)
    model, distribution = build_model(run, problem.tokenizer.vocab_size, options)
    state = restore(run, model, workers)
    start = batches.start = state["step"]
    if not start:
        if run.config["init_from"]:
            initialise(model, problem.tokenizer, run.config["init_from"])
        model.adopt(problem.tokenizer)
    if workers.count > 1:
        workers.check_same(
            {
                "version": versions(),
                "settings": [problem.name, problem.parameters, dataclasses.asdict(hparams), options.update_settings()],
                "vocabulary": problem.tokenizer.fingerprint,
                "corpus": problem.store.manifest["files"],
                "first weights": model_arrays(model),
            }
        )
    if not start:  # before `create`, after which a run cannot change `keep_checkpoints`
        run.checkpoints.check_room(model, hparams.keep_checkpoints)
    if workers.is_chief:
        run.create()
    batches = adapt_batches(model, batches)

    nonfinite = NonFinite(start, run, batches)
    progress = ProgressLogger(start, run, batches, model.update_flops, nonfinite)
    validation = ValidationCallback(start, run, problem, validation_batches, stop, workers)
    checkpoint = CheckpointCallback(start, run, progress, validation, stop, workers)
    callbacks = [progress, validation, checkpoint, EarlyStopping(start, run, validation)]
    for callback in callbacks:
        callback.set_model(model)
    if start:
        validation.evaluate_if_missing(start)
        checkpoint.on_end(start)
    if ended := _finished(run, start):
        logger.info(ended)
        return
    log_summary(run, problem, model, batches, options, distribution, workers.count)
    if workers.is_chief:
        run.write_manifest(make_manifest(run, model))  # describes the process that runs the following updates
    if start:
        run.checkpoints.check_room(model, hparams.keep_checkpoints)
    run.log(
        kind="start", step=start, precision=options.precision, devices=count_accelerators(distribution) or 1,
        device_flops_per_second=device_rate("float32"),  # to estimate the training cost as in the paper
    )  # fmt: skip
    began = time.monotonic()
    with (
        _compiling_ahead(start, batches, hparams.train_steps - start) as first_callbacks,
        progress_bar("training", hparams.train_steps, start) as progress.advance,
    ):
        model.fit(
            batches, steps_per_epoch=hparams.train_steps - start, epochs=1, verbose=0,
            callbacks=StepCallbacks([*first_callbacks, *callbacks], add_history=True, model=model),
        )  # fmt: skip
    _log_result(run, model, progress, time.monotonic() - began)


@contextlib.contextmanager
def _compiling_ahead(start, batches, updates):
    """Yield a list with the `CompileAhead` callback on JAX, or an empty list on TensorFlow."""
    if keras.backend.backend() != "jax":
        yield []
        return
    from keras_transformer.training.compile_ahead import CompileAhead

    with CompileAhead(start, batches, updates) as callback:
        yield [callback]


def _finished(run, step):
    """Return the message for a run that has nothing left to do after the checkpoint at `step`, or None."""
    if step >= run.hparams.train_steps:
        ended, longer = "finished", f"--train_steps above {step:,}"
    elif ended_early(run, step):
        ended, longer = "stopped early", "a larger --patience or --patience=none"
    else:
        return None
    return (
        f"{run.path} {ended} after {step:,} updates, so there is nothing to do. Continue training with "
        f"{longer}, or evaluate it with {_evaluate(run)}"
    )


def _evaluate(run):
    """Return the command that evaluates a run."""
    return f"python -m keras_transformer.evaluate {shell_flag('run', run.path)}"


def restore(run, model, workers):
    """Restore the newest complete checkpoint, if there is one.

    Returns:
        The state of the checkpoint. Its "step" is the number of updates, 0 without a checkpoint.
    """
    arrays, state = (workers.is_chief and run.checkpoints.load_latest()) or ({}, None)
    if workers.is_chief and state is None and run.checkpoints.steps():
        raise UserError(f"no checkpoint in {run.checkpoints.path} is complete; remove the directory to start again")
    state = workers.broadcast(state)
    if state is None:
        return {"step": 0}
    what = f"the checkpoint of step {state['step']} in {run.path}"
    arrays = {part: workers.broadcast_arrays(arrays.get(part)) for part in workers.broadcast(sorted(arrays))}
    if "optimizer" not in arrays:
        raise UserError(f"{what} has no optimizer state; training cannot resume from this checkpoint")
    assign_training(model, arrays, what)
    return state


def _log_result(run, model, progress, seconds):
    """Log the model size, the cost and the best result of the run, and the command that evaluates the run."""
    best = run.checkpoints.best()
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    logger.info(
        f"trained {parameters:,} parameters for {progress.step - progress.start:,} updates on "
        f"{progress.tokens:,} tokens in {duration(seconds)}"
    )
    for line in summary_lines(training_summary(run.metrics())):
        logger.info(line)
    if best:
        metric = run.hparams.best_metric
        value = best.get(TRANSLATION_METRICS.get(metric, metric))
        digits = 4 if metric in ("nll", "loss") else 2
        result = f"without a finite {metric}" if value is None else f"{metric} {value:.{digits}f}"
        logger.info(f"best validation {result} at step {best['step']:,}")
    logger.info(f"the run is in {run.path}; evaluate it with {_evaluate(run)}")
