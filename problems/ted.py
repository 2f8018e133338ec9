"""TED talks, Portuguese to English (Qi et al. 2018, "When and Why are Pre-trained Word Embeddings Useful …").

The text is lower-cased and tokenized. TensorFlow Datasets (TFDS) stores `ted_hrlr_translate/pt_to_en` 1.0.0 in
DATA_DIR/tensorflow_datasets. The environment variable TFDS_DATA_DIR overrides this directory. According to the TFDS
catalog, the corpus has 51,785 training, 1,193 validation and 1,803 test pairs, and the download for all languages is
125 MiB.

With --raw_dir=FOLDER, the problem reads plain or compressed files from disk instead. Their names must be those
of the archive (pt.train, en.train, pt.dev, …) or those of other problems (train.pt, train.en, validation.pt, …).
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.data.corpus_files import PlainFiles
from keras_transformer.data.tfds_corpus import TfdsCorpus
from keras_transformer.tasks.translation import CorpusProblem

LANGUAGES = ("pt", "en")
NAMES = {"train": ["{}.train", "train.{}"], "validation": ["{}.dev", "validation.{}"], "test": ["{}.test", "test.{}"]}


@register_problem("ted_pten", reverse="ted_enpt")
@dataclasses.dataclass(kw_only=True)
class TedPtEn(CorpusProblem):
    """TED talks, Portuguese to English, 52,000 pairs, lower-cased and tokenized."""

    source: ClassVar[str] = "pt"
    target: ClassVar[str] = "en"
    tokenized: ClassVar[bool] = True

    @property
    def texts(self):
        """The corpus: `PlainFiles` in `raw_dir`, or a `TfdsCorpus`."""
        if self.raw_dir is not None:
            return PlainFiles(self.raw_dir, LANGUAGES, NAMES)
        return TfdsCorpus(
            "ted_hrlr_translate/pt_to_en:1.0.0",
            LANGUAGES,
            str(Path(self.data_dir) / "tensorflow_datasets"),
            url="http://www.phontron.com/data/qi18naacl-dataset.tar.gz",
            download_size="125 MiB",
            plain_files="the folder of pt.train, en.train, pt.dev, …",
        )
