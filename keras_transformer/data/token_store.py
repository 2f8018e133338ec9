"""TokenStore: a prepared corpus, token ids on disk, memory-mapped, with a manifest."""

import itertools
from pathlib import Path

import numpy as np

from keras_transformer.data.tokenizer import EOS, load_tokenizer
from keras_transformer.errors import UserError
from keras_transformer.files import read_json, sha256, write_json, written_directory

SIDES = ("source", "target")
VERSION = 1
CHUNK = 10_000


class TokenStore:
    """Opens what `TokenStore.write` wrote.

    Args:
        path: Its directory.
        reverse: Whether source and target change places.

    Raises:
        UserError: The directory holds no whole store.
    """

    def __init__(self, path, reverse=False):
        self.path = Path(path)
        self.manifest = read_json(
            self.path / "manifest.json", f"{path} is no whole prepared corpus, remove it to prepare it anew"
        )
        if self.manifest.get("version") != VERSION:
            raise UserError(f"{path} was prepared by another version of this program; remove it to prepare it anew")
        self.tokenizer = load_tokenizer(self.path)
        self._sides = SIDES[::-1] if reverse else SIDES

    def split(self, name):
        """Returns the `Split` called `name`.

        Raises:
            UserError: The corpus has no such split, or its files are not as they were written.
        """
        if name not in self.manifest["splits"]:
            raise UserError(f"{self.path} has no split {name!r}; there are: {', '.join(self.manifest['splits'])}")
        return Split(*(Sequences(self.path, f"{name}.{side}", self.manifest["files"]) for side in self._sides))

    @staticmethod
    def write(path, splits, tokenizer, manifest):
        """Encodes pairs of texts to a new store at `path`, which appears only once it is whole.

        Args:
            path: Directory to make; one that is there is replaced.
            splits: {name: iterable of (source, target) texts}.
            tokenizer: `Tokenizer`; kept in the store.
            manifest: Dictionary of what else is worth knowing of the corpus.
        """
        dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        files, counts = {}, {}
        with written_directory(path) as folder:
            tokenizer.save(folder)
            for name, pairs in splits.items():
                writers = [_SequenceWriter(folder / f"{name}.{side}", dtype) for side in SIDES]
                pairs = iter(pairs)
                while chunk := list(itertools.islice(pairs, CHUNK)):
                    for writer, texts in zip(writers, zip(*chunk)):
                        writer.extend(tokenizer.encode(texts))
                counts[name] = {"pairs": len(writers[0].lengths)}
                for side, writer in zip(SIDES, writers):
                    counts[name][f"{side}_tokens"] = int(sum(writer.lengths))
                    files.update(writer.close())
            write_json(
                folder / "manifest.json",
                {**manifest, "version": VERSION, "vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint,
                 "splits": counts, "files": files},
            )  # fmt: skip

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
        for suffix in ("ids", "lengths"):
            path, size = folder / f"{name}.{suffix}", files[f"{name}.{suffix}"]["bytes"]
            if not path.is_file() or path.stat().st_size != size:
                raise UserError(f"{path} is missing or damaged; remove {folder} to prepare it anew")
        self.lengths = np.fromfile(folder / f"{name}.lengths", dtype=np.int32)
        ids, dtype = folder / f"{name}.ids", files[f"{name}.ids"]["dtype"]
        self._ids = np.memmap(ids, dtype=dtype, mode="r") if ids.stat().st_size else np.zeros(0, dtype)
        self._ends = np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        end = self._ends[row]
        return self._ids[end - self.lengths[row] : end]


class _SequenceWriter:
    """Appends sequences to NAME.ids and, at the end, writes NAME.lengths."""

    def __init__(self, path, dtype):
        self.path, self.dtype, self.lengths = path, np.dtype(dtype), []
        self._file = open(f"{path}.ids", "wb")

    def extend(self, sequences):
        for ids in sequences:
            self.lengths.append(len(ids) + 1)
        flat = [i for ids in sequences for i in (*ids, EOS)]
        self._file.write(np.array(flat, dtype=self.dtype).tobytes())

    def close(self):
        """Returns the manifest's entries of the two files."""
        self._file.close()
        np.array(self.lengths, dtype=np.int32).tofile(f"{self.path}.lengths")
        entries = {}
        for suffix, dtype in (("ids", self.dtype.name), ("lengths", "int32")):
            path = Path(f"{self.path}.{suffix}")
            entries[path.name] = {"bytes": path.stat().st_size, "dtype": dtype, "sha256": sha256(path)}
        return entries
