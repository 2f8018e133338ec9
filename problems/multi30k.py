"""Multi30k, task 1, with 29,000 image captions in English, German and French, for non-commercial use.

The captions are published at github.com/multi30k/dataset. For `multi30k_ende_tok` without images, Wu et al. (2021,
"Good for Misconceived Reasons") report 41.02 BLEU on test 2016 with Transformer-Tiny, the preset `tiny`. The results in
docs/results use NFKC, the default normalization.

If `raw_dir` is given, it must contain the files train, val and test_2016_flickr, plain or compressed, in the folder
itself or in its subfolder `raw` (raw text) or `tok` (tokenized text). File names end in `.en`, `.de` or `.fr` for raw
text, and in `.lc.norm.tok.en`, `.lc.norm.tok.de` or `.lc.norm.tok.fr` for tokenized text. The files of two additional
test sets, test_2017_flickr (1,000 pairs) and test_2017_mscoco (461 pairs), are needed only to decode or score these
sets.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.data.corpus import read_pairs
from keras_transformer.data.corpus_files import download, existing_file, remedy
from keras_transformer.tasks.problem import setting
from keras_transformer.tasks.translation import NORMALIZATION, TranslationProblem
from keras_transformer.utils.errors import UserError

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
FILES = {
    "train": "train", "validation": "val", "test": "test_2016_flickr",
    "test_2017": "test_2017_flickr", "test_coco": "test_2017_mscoco",
}  # fmt: skip
SHA256 = {
    "raw/train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "raw/train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "raw/train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "raw/val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "raw/val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "raw/val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "raw/test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "raw/test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "raw/test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "raw/test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "raw/test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "raw/test_2017_flickr.fr.gz": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    "raw/test_2017_mscoco.en.gz": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
    "raw/test_2017_mscoco.de.gz": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
    "raw/test_2017_mscoco.fr.gz": "754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0",
    "tok/train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "tok/val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    "tok/test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "tok/test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "tok/test_2016_flickr.lc.norm.tok.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    "tok/test_2017_flickr.lc.norm.tok.en": "c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f",
    "tok/test_2017_flickr.lc.norm.tok.de": "02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6",
    "tok/test_2017_flickr.lc.norm.tok.fr": "c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4",
    "tok/test_2017_mscoco.lc.norm.tok.en": "fe69ae004d71c42ead0301e70c57de5b1b6b5fb7f52210d42b22801e98e656f3",
    "tok/test_2017_mscoco.lc.norm.tok.de": "e2825990b8a4e5289d2cdba801d57c187810bab9b4f5d87a30c35800a0d871b6",
    "tok/test_2017_mscoco.lc.norm.tok.fr": "0b6a4620f02b6b9acf7811fda23f90fed9c6baa0b96aa224db50a273078c84d1",
}


@register_problem("multi30k_ende", reverse="multi30k_deen")
@dataclasses.dataclass(kw_only=True)
class Multi30kEnDe(TranslationProblem):
    """Multi30k captions, English to German, raw text."""

    source: ClassVar[str] = "en"
    target: ClassVar[str] = "de"
    folder: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".{language}.gz"
    test_sets: ClassVar[tuple] = ("test_2017", "test_coco")

    vocab_size: int = setting(9712, "number of pieces in the joint vocabulary", low=8)
    normalization: str = setting("nfkc", NORMALIZATION, choices=("identity", "nfkc", "nfkc_cf"))

    def path(self, split, language):
        """Return the path of one side of a split, in `raw_dir` or among the downloads."""
        name = FILES[split] + self.suffix.format(language=language)
        if self.raw_dir is None:
            path = Path(self.data_dir) / "downloads" / "multi30k" / self.folder / name
            download(f"{URL}/{self.folder}/{name}", path, SHA256[f"{self.folder}/{name}"])
            return path
        stem = name.removesuffix(".gz")
        path = existing_file(Path(self.raw_dir) / self.folder, stem) or existing_file(self.raw_dir, stem)
        if path is None:
            hint = remedy(self.raw_dir, stem) or remedy(Path(self.raw_dir) / self.folder, stem)
            raise UserError(
                f"{self.name}: {name} is missing in {self.raw_dir} and in {self.raw_dir}/{self.folder}{hint}"
            )
        return path

    def corpus_files(self):
        return [self.path(split, language) for split in self.splits for language in (self.source, self.target)]

    def pairs(self, split):
        return read_pairs(self.path(split, self.source), self.path(split, self.target))


@register_problem("multi30k_ende_tok", reverse="multi30k_deen_tok")
@dataclasses.dataclass(kw_only=True)
class Multi30kEnDeTokenized(Multi30kEnDe):
    """Multi30k captions, English to German, lower-cased and tokenized as in published results."""

    folder: ClassVar[str] = "tok"
    suffix: ClassVar[str] = ".lc.norm.tok.{language}"
    tokenized: ClassVar[bool] = True


@register_problem("multi30k_enfr", reverse="multi30k_fren")
@dataclasses.dataclass(kw_only=True)
class Multi30kEnFr(Multi30kEnDe):
    """Multi30k captions, English to French, raw text."""

    target: ClassVar[str] = "fr"


@register_problem("multi30k_enfr_tok", reverse="multi30k_fren_tok")
@dataclasses.dataclass(kw_only=True)
class Multi30kEnFrTokenized(Multi30kEnDeTokenized):
    """Multi30k captions, English to French, lower-cased and tokenized as in published results."""

    target: ClassVar[str] = "fr"
