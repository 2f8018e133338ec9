"""Preparation of a corpus by several processes, which may run on several machines.

Each process encodes a shard, and the last process to finish merges all shards.

    PREPARED.shards/vocabulary   the vocabulary, which the first process learns, and shard.json with a corpus hash
    PREPARED.shards/1-of-4       the chunk files of a shard, and shard.json with hashes of the vocabulary and corpus

The chunks of a shard are identical to those that an ordinary preparation would write. Merging therefore works like
resuming an interrupted preparation whose chunks all exist, and gives the same result.
"""

import contextlib
import logging
import os
import re
import shutil

from keras_transformer.data.preparation import ChangedTexts, write_chunks
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.tasks.prepared_corpus import corpus_state
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import (
    atomic_directory,
    lock_file,
    read_json,
    remove_directory,
    work_directory,
    write_json,
)

logger = logging.getLogger(__name__)

VOCABULARY, SHARD = "vocabulary", "shard.json"


def shards_dir(problem):
    """Return the directory of the shards of a problem's corpus."""
    return problem.prepared_dir.with_name(f"{problem.prepared_dir.name}.shards")


def prepare_shard(problem, number, count):
    """Encode the chunks of a shard, unless they exist. Merge the shards if all of them exist.

    Processes may call this function for different shards at the same time. A call resumes an interrupted shard.

    Args:
        problem: `Problem`.
        number: Number of the shard, starting at 1.
        count: Number of shards.

    Returns:
        Whether the prepared corpus is complete.

    Raises:
        UserError: The directory contains shards with a different `count`, vocabulary or corpus.
    """
    if problem.is_prepared():
        return True
    folder = shards_dir(problem)
    _check_count(folder, count)
    _, corpus = corpus_state(problem)
    tokenizer, expected = _vocabulary(problem, folder, corpus)
    path = folder / f"{number}-of-{count}"
    if path.is_dir():
        _check_shard(path, corpus, tokenizer)
    else:
        logger.info(f"preparing shard {number} of {count} of {problem.corpus} in {path}")
        _write_shard(problem, path, (number, count), corpus, tokenizer, expected)
    if not _missing(folder, count):
        merge_shards(problem)
    return problem.is_prepared()


def merge_shards(problem):
    """Merge the shards into the prepared corpus and remove the shards, unless the prepared corpus exists.

    Raises:
        UserError: A shard is missing or damaged, or does not match the shared vocabulary or the corpus files.
    """
    folder = shards_dir(problem)
    with _locked(folder):
        if not problem.is_prepared():  # another process may have merged the shards
            _merge(problem, folder)


def _merge(problem, folder):
    counts = _counts(folder)
    if not counts:
        raise UserError(f"{folder} has no shards of {problem.corpus}; write them with --shard=1/N to --shard=N/N")
    count = max(counts)
    _check_count(folder, count)
    if missing := _missing(folder, count):
        raise UserError(
            f"{folder} lacks {len(missing)} of {count} shards: {', '.join(missing)}; "
            f"create each missing shard, for example with `prepare --shard={missing[0].replace('-of-', '/')}`"
        )
    _, corpus = corpus_state(problem)
    tokenizer = load_tokenizer(folder / VOCABULARY)
    shards = [folder / f"{number}-of-{count}" for number in range(1, count + 1)]
    for path in shards:
        _check_shard(path, corpus, tokenizer)
    # The directories of the shards also contain copies of the vocabulary.
    files = {path.name: path for source in (*shards, folder / VOCABULARY) for path in source.iterdir()}
    with work_directory(problem.prepared_dir, corpus) as work:
        work.keep = True
        work.clear()  # an interrupted `prepare` without shards may have left another vocabulary and its chunks
        for name in files.keys() - {SHARD}:
            _link(files[name], work.folder / name)
    problem.prepare()  # resumes in the work directory, which now contains all chunks
    remove_directory(folder)


@contextlib.contextmanager
def _locked(folder):
    """Hold the lock that guards the vocabulary and the merge, for the duration of a `with` block."""
    lock = folder.with_name(f".{folder.name}.lock")
    with lock_file(lock, wait=True):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _write_shard(problem, path, shard, corpus, tokenizer, expected):
    """Write the chunk files of a shard."""
    # The key contains the vocabulary, so that chunks from an attempt with another vocabulary are not reused.
    with work_directory(path, f"{corpus}-{tokenizer.fingerprint[:16]}") as work:
        if path.is_dir():  # another process has written the shard in the meantime
            return
        work.keep = True
        tokenizer.save(work.folder)
        options = {**problem.encoding_options, "expected": expected, "shard": shard}
        try:
            chunks = write_chunks(work, problem.stored_splits(), tokenizer, **options)
        except ChangedTexts:
            work.clear()
            raise UserError(f"the texts of {problem.corpus} changed while they were read; rerun the command") from None
        names = [chunk.name for paths in chunks.values() for chunk in paths]
        write_json(work.folder / SHARD, {"corpus": corpus, "tokenizer": tokenizer.fingerprint, "chunks": names})
        work.finish()


def _vocabulary(problem, folder, corpus):
    """Return the shared tokenizer, and {split: expected number of pairs} or None.

    If `folder` does not contain the vocabulary of the corpus with the hash `corpus` yet, this function learns it.
    Otherwise, the second value is None.
    """
    path = folder / VOCABULARY
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if path.is_dir() and read_json(path / SHARD, f"remove {path} to start again", corpus=str)["corpus"] == corpus:
            return load_tokenizer(path), None
        logger.info(f"learning the vocabulary of all shards in {path}")
        tokenizer = problem.make_tokenizer()
        with atomic_directory(path) as temporary:
            tokenizer.save(temporary)
            write_json(temporary / SHARD, {"corpus": corpus})
        return tokenizer, problem.expected_pairs


def _check_shard(path, corpus, tokenizer):
    """Raise a `UserError` unless a shard is complete and matches the given corpus hash and vocabulary."""
    shard = read_json(path / SHARD, f"shard {path}", corpus=str, tokenizer=str, chunks=list)
    remedy = f"remove {path} and run `prepare --shard={path.name.replace('-of-', '/')}` again"
    if shard["corpus"] != corpus:
        raise UserError(f"shard {path} was made from different corpus files; {remedy}")
    if shard["tokenizer"] != tokenizer.fingerprint:
        raise UserError(f"shard {path} has a different vocabulary from {path.parent / VOCABULARY}; {remedy}")
    for name in shard["chunks"]:
        if not (path / name).is_file():
            raise UserError(f"shard {path} is damaged, because {name} is missing; {remedy}")


def _counts(folder):
    """Return the set of all N in the names I-of-N of the shards in a directory."""
    names = (re.fullmatch(r"\d+-of-(\d+)", path.name) for path in folder.glob("*-of-*"))
    return {int(match[1]) for match in names if match}


def _check_count(folder, count):
    """Raise a `UserError` unless the names of all shards in a directory end in `count`."""
    if other := _counts(folder) - {count}:
        raise UserError(
            f"{folder} already contains shards from --shard=I/{min(other)}, not from --shard=I/{count}; use "
            f"--shard=I/{min(other)}, or remove the directory"
        )


def _missing(folder, count):
    """Return the names of the missing shards."""
    names = [f"{number}-of-{count}" for number in range(1, count + 1)]
    return [name for name in names if not (folder / name).is_dir()]


def _link(path, new):
    """Create a hard link, or a copy if the file system does not support hard links."""
    try:
        os.link(path, new)
    except OSError:
        # If this process is killed, the next call of `work_directory` removes the temporary file.
        temporary = new.with_name(f".{new.name}")
        shutil.copyfile(path, temporary)
        os.replace(temporary, new)
