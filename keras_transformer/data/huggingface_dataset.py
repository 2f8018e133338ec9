"""Parallel text from Hugging Face datasets on disk or on the Hub. This module imports `datasets` on first use."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from keras_transformer.utils.errors import UserError, optional_import

PREFIX = "dataset:"
FORM = "dataset:NAME[:CONFIG[:SPLIT]]"
SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes for a `DatasetDict` and for a `Dataset`."""
TRANSLATION = "translation"
"""Column with the texts of all languages in datasets that do not have a column per language."""
BATCH = 1000
"""Number of rows to read at once."""


@dataclass(frozen=True)
class HuggingFaceDataset:
    """One split of a Hugging Face dataset.

    Attributes:
        name: Path of a local folder, or a name on the Hub, "NAME" or "USER/NAME".
        config: Name of the configuration, or None for the default one.
        split: Name of the split.
    """

    name: str
    config: str | None
    split: str

    @classmethod
    def parse(cls, text, folder, split):
        """Parse a text of the form `FORM` and return the dataset that the text specifies.

        Args:
            text: The text. NAME is a folder, relative to `folder`, or a name on the Hub. CONFIG may be empty.
            folder: Folder to which relative paths refer.
            split: Default split.

        Raises:
            UserError: The text does not have this form, or the folder does not exist.
        """
        name, *rest = text.removeprefix(PREFIX).split(":")
        if not name or len(rest) > 2:
            raise UserError(f"a dataset must have the form {FORM}, got {text}")
        path = Path(folder) / os.path.expanduser(name)
        if path.is_dir():
            name = str(path)
        elif not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
            raise UserError(f"the dataset folder {path} does not exist. Check the path.")
        config, split_name = (*rest, "", "")[:2]
        return cls(name, config or None, split_name or split)

    def files(self):
        """Return the paths of the files of a local dataset, or an empty list for a dataset on the Hub."""
        return sorted(path for path in Path(self.name).rglob("*") if path.is_file()) if Path(self.name).is_dir() else []

    def pairs(self, source, target):
        """Yield the pairs of texts, (source, target).

        Args:
            source: Code of the source language, which is a column of the dataset or a key in its column "translation".
            target: Code of the target language.

        Raises:
            UserError: `datasets` is not installed, the dataset cannot be read, or the split or a text is missing.
        """
        rows = self._open()
        nested = not {source, target} <= set(rows.column_names)
        if nested and TRANSLATION not in rows.column_names:
            raise UserError(
                f"dataset {self.name} must have the columns {source!r} and {target!r}, or a column {TRANSLATION!r} "
                f"that contains both languages, but has only {', '.join(map(repr, rows.column_names))}. Rename its "
                "columns, or set problem.source and problem.target."
            )
        rows = rows.select_columns([TRANSLATION] if nested else [source, target])
        count = 0
        for batch in rows.iter(BATCH):
            if nested:
                rows_of_batch = [row if isinstance(row, dict) else {} for row in batch[TRANSLATION]]
                texts = [(row.get(source), row.get(target)) for row in rows_of_batch]
            else:
                texts = list(zip(batch[source], batch[target]))
            for pair in texts:
                if not all(isinstance(text, str) for text in pair):
                    raise UserError(
                        f"row {count} (counted from 0) of dataset {self.name} must have texts for {source} and "
                        f"{target}, got {pair[0]!r:.60} and {pair[1]!r:.60}. Remove the row, or set problem.source "
                        "and problem.target."
                    )
                yield pair
                count += 1

    def _open(self):
        """Return the split as a `datasets.Dataset`."""
        with optional_import(f"{PREFIX}{self.name}", "datasets", "datasets"):
            import datasets
        saved = any((Path(self.name) / name).is_file() for name in SAVED)
        if saved and self.config:
            raise UserError(
                f"{self.name} is a saved dataset and has no configuration {self.config!r}. Write dataset:NAME::SPLIT."
            )
        try:
            found = datasets.load_from_disk(self.name) if saved else datasets.load_dataset(self.name, self.config)
        # RuntimeError: a loading script. KeyError and TypeError: damaged metadata.
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"cannot read the dataset {self.name}: {reason}. Check its name and files.") from None
        splits = found if isinstance(found, dict) else {str(found.split or self.split): found}
        if self.split not in splits:
            raise UserError(
                f"the split of dataset {self.name} must be one of {', '.join(splits)}, got {self.split!r}. Use the "
                f"form {FORM}."
            )
        return splits[self.split]
