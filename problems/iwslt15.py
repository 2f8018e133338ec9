"""IWSLT 2015, TED talks, English to Vietnamese, in the version of Stanford's NLP group (Luong and Manning 2015).

The text is tokenized. There are 133,317 training pairs, 1,553 validation pairs (tst2012) and 1,268 test pairs
(tst2013). The program does not download the corpus. Download these files from
https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/ into a folder, and pass the folder with --raw_dir:

- train.en, train.vi
- tst2012.en, tst2012.vi (or validation.en, validation.vi)
- tst2013.en, tst2013.vi (or test.en, test.vi)

The files may be compressed.
"""

import dataclasses
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.data.corpus_files import PlainFiles
from keras_transformer.tasks.translation import CorpusProblem
from keras_transformer.utils.errors import require

HOME = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/"
NAMES = {"train": ["train.{}"], "validation": ["tst2012.{}", "validation.{}"], "test": ["tst2013.{}", "test.{}"]}


@register_problem("iwslt15_envi", reverse="iwslt15_vien")
@dataclasses.dataclass(kw_only=True)
class Iwslt15EnVi(CorpusProblem):
    """IWSLT15 TED talks, English to Vietnamese, 133,000 pairs, tokenized; files in --raw_dir."""

    source: ClassVar[str] = "en"
    target: ClassVar[str] = "vi"
    tokenized: ClassVar[bool] = True

    @property
    def texts(self):
        """The corpus, `PlainFiles` in `raw_dir`."""
        require(
            self.raw_dir,
            f"{self.name} cannot be downloaded automatically; put train.en, train.vi, tst2012.en, tst2012.vi, "
            f"tst2013.en and tst2013.vi from {HOME} into a folder and add --raw_dir=FOLDER",
        )
        return PlainFiles(self.raw_dir, (self.source, self.target), NAMES)
