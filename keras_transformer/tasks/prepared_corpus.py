"""Functions that write the prepared corpus of a problem, and that check whether it is up to date."""

import hashlib
import inspect
import json
import logging
from pathlib import Path

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import sha256, work_directory

logger = logging.getLogger(__name__)

CHUNK_FORMAT = 4  # format version of the chunk files, from which an interrupted preparation resumes


def check_store(problem):
    """Return (whether the prepared corpus exists and is up to date, message to log or None)."""
    problem.forget()  # another process may have replaced the corpus
    if not (problem.prepared_dir / "manifest.json").is_file():
        return False, None
    corpus = {Path(path).resolve(): known for path, known in problem.store.manifest.get("corpus", {}).items()}
    missing = [path for path in corpus if not path.is_file()]
    for path, known in corpus.items():
        if path not in missing and not _is_same(path, known):
            return False, f"{path} has changed since it was prepared"
    try:
        # `_files` would download missing files again.
        files = problem.further_files() if missing and problem.raw_dir is None else _files(problem)
    except (UserError, OSError):
        if not missing:
            raise
        return True, _missing(missing)
    files = {Path(path).resolve(): path for path in files}
    for path, name in files.items():
        if path not in corpus:
            return False, f"{name} was added after the corpus was prepared"
    for path in corpus if problem.raw_dir else ():
        if path not in files:  # the problem no longer needs the file, and may divide the other files differently
            return False, f"{path} was removed after the corpus was prepared"
    return True, _missing(missing)


def _missing(paths):
    """Return a remark about missing corpus files, or None if the list is empty."""
    return f"{paths[0]} is missing; using the corpus prepared from it" if paths else None


def changed_since(problem, split, corpus):
    """Return a remark about a file that has changed since training, or None.

    The remark means that training pairs may now be in the split. It is None for the training split, and for problems
    without `raw_dir`.

    Args:
        problem: `Problem`.
        split: Name of the split.
        corpus: Entry "corpus" of a run's manifest, with {path: checksum, size and mtime} of the corpus files.
    """
    if split == "train" or not problem.raw_dir:
        return None
    try:
        files, training = ({Path(path).resolve() for path in problem.split_files(one)} for one in (split, "train"))
    except (UserError, OSError):  # other splits may be missing
        return None
    for path in sorted(files):
        if str(path) in corpus and path.is_file() and not _is_same(path, corpus[str(path)]):
            return f"{path} has changed"
    if files & training:  # the split consists of held-out training pairs
        for path in map(Path, sorted(corpus)):
            if path.name.startswith(f"{split}.") and path.parent.is_dir() and not path.exists():
                return f"{path} was removed"
    return None


def prepare_if_needed(problem):
    """Write the prepared corpus, unless it exists and is up to date."""
    current, remark = check_store(problem)
    if remark:
        logger.info(remark)
    if not current:
        _prepare(problem)


def _prepare(problem):
    """Write the prepared corpus."""
    logger.info(f"preparing {problem.corpus} in {problem.prepared_dir}")
    files, identity = corpus_state(problem)
    manifest = {"problem": problem.corpus, "parameters": problem.parameters, "corpus": files}
    with work_directory(problem.prepared_dir, identity) as work:
        if problem.is_prepared():  # another process has prepared the corpus in the meantime
            return
        _write(problem, work, manifest)
        for path, known in files.items():
            if not Path(path).is_file() or not _is_same(Path(path), known):
                work.clear()
                raise UserError(f"{path} changed while it was read; rerun the command when the file is complete")
        work.finish()
    problem.__dict__.pop("store", None)  # not `forget`, because the files have not changed
    for split, counts in problem.store.manifest["splits"].items():
        logger.info(f"  {split}: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in counts.items()))


def _write(problem, work, manifest):
    """Write the vocabulary, the token store and the manifest into a `WorkDirectory`."""
    from keras_transformer.data.preparation import ChangedTexts, write_store
    from keras_transformer.data.tokenizers.loading import TOKENIZER_FILES, load_tokenizer

    if any((work.folder / name).is_file() for name in TOKENIZER_FILES):
        # Reuse the vocabulary, because learning takes time and might give a different vocabulary.
        tokenizer, expected = load_tokenizer(work.folder), None
    else:
        tokenizer, expected = problem.make_tokenizer(), problem.expected_pairs
    options = {**problem.encoding_options, "expected": expected}
    try:
        write_store(work, problem.stored_splits(), tokenizer, manifest, **options)
    except ChangedTexts:
        logger.info(f"the texts of {problem.corpus} have changed since the interrupted preparation; starting again")
        work.clear()
        _write(problem, work, manifest)


def corpus_state(problem):
    """Return {path: checksum, size and mtime} of the corpus files, and a hash of all that affects the chunk files.

    Raises:
        UserError: `raw_dir` is not a folder.
    """
    files = {str(Path(path).resolve()): _file_state(path) for path in _files(problem)}
    if problem.raw_dir and not Path(problem.raw_dir).is_dir():  # problems without files ignore `raw_dir`
        raise UserError(f"--raw_dir must be a folder, got {problem.raw_dir}. This problem does not need the flag.")
    checksums = {path: known["sha256"] for path, known in files.items()}
    code = [sha256(path) for path in code_files(problem)]  # a code change may change the pairs
    return files, identity_hash([CHUNK_FORMAT, problem.identity, checksums, code])[:16]


def code_files(problem):
    """Return a list with the Python file of the problem's class, or an empty list if the class has no file."""
    try:
        return [inspect.getfile(type(problem))]
    except (TypeError, OSError):  # raised for a class from a notebook
        return []


def identity_hash(values):
    """Return the SHA-256 of values that JSON supports, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _files(problem):
    return [*problem.corpus_files(), *problem.further_files()]


def _file_state(path):
    status = Path(path).stat()
    return {"sha256": sha256(path), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _is_same(path, known):
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) == (known.get("bytes"), known.get("mtime_ns")):
        return True
    return status.st_size == known.get("bytes") and sha256(path) == known.get("sha256")
