"""TokenStore: a prepared corpus, token ids on disk, memory-mapped, with a manifest."""

from pathlib import Path

import numpy as np

from keras_transformer.data.preparation import CHUNKS, SIDES, write_columns
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import WorkDirectory, atomic_directory, read_json, sha256, write_json

VERSION = 1
ID_TYPES = ("uint16", "uint32")


class TokenStore:
    """A prepared corpus on disk, which `TokenStore.write` wrote.

    Args:
        path: Its directory.
        reverse: Whether source and target change places.

    Raises:
        UserError: The directory holds no whole store.
    """

    def __init__(self, path, reverse=False):
        self.path = Path(path)
        self.manifest = read_json(
            self.path / "manifest.json", f"{path} is no whole prepared corpus, remove it to prepare it again",
            version=int, splits=dict, files=dict, tokenizer=str,
        )  # fmt: skip
        if self.manifest["version"] != VERSION:
            raise UserError(f"{path} was prepared by another version of this program; remove it to prepare it again")
        self.tokenizer = load_tokenizer(self.path)
        if self.tokenizer.fingerprint != self.manifest["tokenizer"]:
            raise UserError(f"{self.path / self.tokenizer.file_name} is damaged; remove {path} to prepare it again")
        self._sides = SIDES[::-1] if reverse else SIDES

    def split(self, name):
        """Return the `Split` called `name`.

        Raises:
            UserError: The corpus has no such split, or its files are not as they were written.
        """
        if name not in self.manifest["splits"]:
            raise UserError(f"{self.path} has no split {name!r}; there are: {', '.join(self.manifest['splits'])}")
        return Split(*(Sequences(self.path, f"{name}.{side}", self.manifest["files"]) for side in self._sides))

    @staticmethod
    def write(path, splits, tokenizer, manifest, **options):
        """Encode pairs of texts to a new store at `path`, which appears only once it is whole.

        Args:
            path: Directory to make; one that is there is replaced.
            splits: {name: iterable of (source, target) texts}.
            tokenizer: `Tokenizer`; kept in the store.
            manifest: Dictionary of what else is worth knowing of the corpus.
            **options: `filters`, `expected`, `workers` and `bpe_dropout`, as for `preparation.write_columns`.
        """
        with atomic_directory(path) as folder:
            TokenStore.fill(WorkDirectory(folder, path), splits, tokenizer, manifest, **options)

    @staticmethod
    def fill(work, splits, tokenizer, manifest, **options):
        """Do the work of `write` in a `WorkDirectory`, where it resumes an interrupted preparation.

        Raises:
            ChangedTexts: The interrupted preparation had other texts.
        """
        if not (work.folder / "manifest.json").is_file():
            tokenizer.save(work.folder)
            counts, dropped, files = write_columns(work, splits, tokenizer, **options)
            write_json(
                work.folder / "manifest.json",
                {**manifest, "version": VERSION, "vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint,
                 "splits": counts, "dropped": dropped, "files": files},
            )  # fmt: skip
        for path in work.folder.glob(CHUNKS):  # needed until the manifest exists
            path.unlink()

    @property
    def fingerprint(self):
        """SHA-256 of the manifest, which holds the checksums of all else."""
        return sha256(self.path / "manifest.json")


class Split:
    """Pairs of token sequences: `source` and `target`, two `Sequences` of the same length."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def __len__(self):
        return len(self.source)


class Sequences:
    """Memory-mapped sequences of ids: `sequences[i]` is int `[length]`, EOS included; `lengths` is int32 `[count]`."""

    def __init__(self, folder, name, files):
        for suffix, dtypes in (("ids", ID_TYPES), ("lengths", ("int32",))):
            path, entry = folder / f"{name}.{suffix}", files.get(f"{name}.{suffix}")
            whole = isinstance(entry, dict) and entry.get("dtype") in dtypes and path.parent == folder
            if not whole or not path.is_file() or sha256(path) != entry.get("sha256"):
                raise UserError(f"{path} is missing or damaged; remove {folder} to prepare it again")
        self.lengths = np.fromfile(folder / f"{name}.lengths", dtype=np.int32)
        ids, dtype = folder / f"{name}.ids", files[f"{name}.ids"]["dtype"]
        self._ids = np.memmap(ids, dtype=dtype, mode="r") if ids.stat().st_size else np.zeros(0, dtype)
        self._ends = np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        end = self._ends[row]
        return self._ids[end - self.lengths[row] : end]
