"""WMT 2014 news translation, the two corpora of the paper (§5.1), from TensorFlow Datasets or plain files.

TensorFlow Datasets (TFDS) downloads `wmt14_translate` 1.0.0 into DATA_DIR/tensorflow_datasets, or into the directory
that the environment variable TFDS_DATA_DIR names:

    problem       training pairs   in the paper        downloaded   stored
    wmt14_ende         4,508,785   about 4.5 million     1.58 GiB    1.36 GiB
    wmt14_enfr        40,836,876   36 million            6.20 GiB   14.65 GiB

The numbers are from the TFDS catalog. The training text consists of Europarl 7, Common Crawl and News Commentary 9. For
French, it also contains the UN corpus and the 10⁹ corpus. TFDS excludes pairs with an empty side. The paper does
not state which French pairs it dropped. The validation split is newstest2013 (3,000 lines), as in Table 3. The test
split is newstest2014 (3,003 lines).

TFDS reads newstest2013 and newstest2014 from SGML files and keeps their entities, such as `&amp;` and `&quot;`. This
module decodes the entities of both sets, because the training text contains none. It does not decode entities in
plain files.

Characters are not normalized (`normalization=identity`), as in tensor2tensor. The paper does not mention normalization.

With --raw_dir=FOLDER, the problem reads plain or compressed files with one sentence per line: train.XX, newstest2013.XX
(or validation.XX) and newstest2014.XX (or test.XX). XX stands for en and de, or for en and fr.

TFDS requires TensorFlow even if JAX trains the model. Plain files require TensorFlow only to learn the word pieces for
French.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.data.corpus_files import PlainFiles
from keras_transformer.data.sampling import drain, sample_texts
from keras_transformer.data.tfds_corpus import TfdsCorpus
from keras_transformer.data.tokenizers.base import no_byte_pairs
from keras_transformer.data.tokenizers.word_pieces import WordPieceTokenizer
from keras_transformer.tasks.problem import setting
from keras_transformer.tasks.translation import LEARNING, NORMALIZATION, CorpusProblem
from keras_transformer.utils.errors import UserError

NAMES = {
    "train": ["train.{}"],
    "validation": ["newstest2013.{}", "validation.{}"],
    "test": ["newstest2014.{}", "test.{}"],
}


@register_problem("wmt14_ende", reverse="wmt14_deen")
@dataclasses.dataclass(kw_only=True)
class Wmt14EnDe(CorpusProblem):
    """WMT14 news, English to German, 4.5 million pairs, byte-pair encoding (§5.1)."""

    source: ClassVar[str] = "en"
    target: ClassVar[str] = "de"
    download_size: ClassVar[str] = "1.58 GiB"

    vocab_size: int = setting(37_000, "number of pieces in the joint vocabulary", low=8)

    @property
    def texts(self):
        """The corpus: `PlainFiles` if `raw_dir` is set, otherwise a `TfdsCorpus`."""
        languages = (self.source, self.target)
        if self.raw_dir is not None:
            return PlainFiles(self.raw_dir, languages, NAMES)
        return TfdsCorpus(
            f"wmt14_translate/{self.target}-{self.source}:1.0.0",
            languages,
            str(Path(self.data_dir) / "tensorflow_datasets"),
            url="http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
            download_size=self.download_size,
            plain_files=f"the folder of train.{self.source}, train.{self.target}, newstest2013.{self.source}, …",
            sgml_splits=("validation", "test"),
        )


@register_problem("wmt14_enfr", reverse="wmt14_fren")
@dataclasses.dataclass(kw_only=True)
class Wmt14EnFr(Wmt14EnDe):
    """WMT14 news, English to French, 40.8 million pairs, word pieces (§5.1)."""

    target: ClassVar[str] = "fr"
    download_size: ClassVar[str] = "6.2 GiB"

    vocab_size: int = setting(32_000, "number of word pieces in the joint vocabulary", low=8)
    normalization: str = setting("identity", NORMALIZATION, choices=("identity",))

    def __post_init__(self):
        super().__post_init__()
        if self.bpe_dropout:  # fail before a vocabulary is learned
            raise no_byte_pairs(f"the word-piece tokenizer of {self.name}")
        if changed := self.changed(("vocab_file", "placeholders", *LEARNING[1:])):
            raise UserError(
                f"{self.name}: {changed[0]} requires a SentencePiece vocabulary, not word pieces; unset {changed[0]}"
            )

    def make_tokenizer(self):
        return WordPieceTokenizer.train(drain(sample_texts(self.training_texts())), self.vocab_size)
