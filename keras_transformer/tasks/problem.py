"""Base class of problems, with the corpus files, tokenizer, batches and scores of a task."""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keras_transformer.config import registry
from keras_transformer.config.hparams import HParams, parse_value, setting, validate
from keras_transformer.metrics.bleu import TRANSLATION_METRICS
from keras_transformer.tasks.prepared_corpus import check_store, code_files, identity_hash, prepare_if_needed
from keras_transformer.utils.errors import UserError, unknown
from keras_transformer.utils.logs import default_log

if TYPE_CHECKING:
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.data.tokenizers.base import Tokenizer

logger = logging.getLogger(__name__)

__all__ = ["Problem", "load_problem", "setting"]


@dataclasses.dataclass(kw_only=True)
class Problem:
    """A task that converts one text into another.

    Commands find a problem by the name given to `register_problem`. Python code can also use unregistered classes.
    A subclass is a dataclass. The fields that it defines with `setting` are the problem's parameters. Users set them
    with `--set problem.NAME=VALUE`.

    Args:
        data_dir: Folder for prepared corpora and downloads.
        raw_dir: Folder of the corpus files, if they are already on disk.
    """

    name: ClassVar[str]
    """The registered name, by default the name of the class."""
    corpus: ClassVar[str]
    """Name of the corpus. A problem and its reverse problem have the same corpus name."""
    splits: ClassVar[tuple] = ("train", "validation", "test")
    """Names of the splits that `prepare` stores."""
    test_sets: ClassVar[tuple] = ()
    """Names of additional test sets. `pairs` accepts these names, but `prepare` does not read the test sets."""
    parts: ClassVar[dict] = {}
    """Parts with separate scores, such as directions: {name: `Problem` that scores the part}, or {} without parts."""
    reversed: ClassVar[bool] = False
    expected_pairs: ClassVar[dict | None] = None
    """{split: number of pairs} if `make_tokenizer` counted the pairs, to estimate the remaining time of `prepare`."""

    overlap_hint: ClassVar[str] = ""
    """Remedy that `prepare` adds to its warning about validation and test pairs that are also training pairs."""

    data_dir: str = "data"
    raw_dir: str | None = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):  # the class of a reverse problem has its own `name`
            cls.name = cls.corpus = cls.__name__

    def __post_init__(self):
        validate(self, self.name)

    # Methods for subclasses to implement or override

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield pairs of texts (source, target), in the direction of the corpus."""
        raise NotImplementedError

    def make_tokenizer(self) -> "Tokenizer":
        """Return the tokenizer. If necessary, learn it from the training text."""
        raise NotImplementedError

    def corpus_files(self) -> list:
        """Return the paths of the corpus files, by default the Python file of the class. Download missing files."""
        return code_files(self)

    def split_files(self, split: str) -> list:
        """Return the paths of the files of a split, if training pairs can become part of it (default: none)."""
        return []

    def further_files(self) -> list:
        """Return the paths of the files that contain additional training pairs."""
        return []

    def further_pairs(self) -> Iterable[tuple[str, str]]:
        """Yield additional training pairs, in the direction of the corpus. The tokenizer does not learn from them."""
        return ()

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> list:
        """Return a list of `metrics.bleu.Score`. The last score selects the best checkpoint."""
        raise NotImplementedError

    def check_metric(self, metric: str) -> None:
        """Check that the problem's scores can be computed.

        Args:
            metric: Value of `best_metric`.

        Raises:
            UserError: `metric` does not apply to this problem, or a package for the scores is missing.
        """
        if metric in TRANSLATION_METRICS:
            raise UserError(
                f"best_metric must be score, nll or loss for {self.name}, got {metric}, which is for translations"
            )

    def all_scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> list:
        """Return all scores that `evaluate` reports. The results of `score`, which validation uses, come last."""
        return self.score(hypotheses, references)

    def part_names(self, split: str) -> list[str] | None:
        """Return the name of the part (see `parts`) of each example in a split, or None if the split has no parts."""
        return None

    def table(self, hypotheses: Sequence[str], references: Sequence[str]) -> str | None:
        """Return a detailed report on the outputs that ends with a summary, or None if the problem has no report."""

    # Methods shared by all problems

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the problem, {name: value}."""
        fields = [field for field in dataclasses.fields(self) if "doc" in field.metadata]
        return {field.name: getattr(self, field.name) for field in fields}

    @property
    def sacrebleu_tokenizer(self) -> str:
        """Name of the sacreBLEU tokenizer that BLEU uses."""
        return "13a"

    @property
    def filters(self) -> dict:
        """{name of a split: `PairFilter` that drops pairs from the prepared corpus}."""
        return {}

    @property
    def noise(self) -> dict:
        """{name of a split: `encoding.Noise` that changes pairs of the prepared corpus}."""
        return {}

    def forget(self) -> None:
        """Discard all cached results that depend on the corpus files or on the prepared corpus."""
        for name in [*vars(self)]:
            if isinstance(getattr(type(self), name, None), functools.cached_property):
                del self.__dict__[name]

    def examples(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield pairs of texts (source, target), in the direction of the problem.

        Raises:
            UserError: The split does not exist, or a corpus file is missing or damaged.
        """
        self.check_split(split)
        for source, target in self.pairs(split):
            yield (target, source) if self.reversed else (source, target)

    def check_split(self, split: str) -> None:
        """Raise a `UserError` if `split` is neither one of `splits` nor one of `test_sets`."""
        if split not in (known := (*self.splits, *self.test_sets)):
            raise unknown("split", split, known)

    @property
    def prepared_dir(self) -> Path:
        """Directory of the prepared corpus. Its name contains a hash of the corpus name, the settings and `raw_dir`."""
        return Path(self.data_dir) / f"{self.corpus}-{identity_hash(self.identity)[:8]}"

    @property
    def identity(self) -> list:
        """List of the values that determine the prepared corpus: corpus name, {setting: value} and `raw_dir`."""
        settings = {}
        for field in dataclasses.fields(self):
            if field.metadata.get("of_corpus"):
                value = getattr(self, field.name)
                settings[field.name] = str(Path(value).resolve()) if value and field.metadata["is_path"] else value
        raw = str(Path(self.raw_dir).resolve()) if self.raw_dir else None
        return [self.corpus, settings, raw]

    @default_log()
    def prepare(self) -> "Problem":
        """Learn the vocabulary and write the token store, unless both exist. Return the problem.

        If a preparation was interrupted, the next call resumes it with the same result. If two processes prepare the
        same corpus, the second waits for the first. Worker processes encode a large corpus on all cores, but `pairs`
        runs in the calling process. The method logs its progress and warns about validation and test pairs that are
        also training pairs.
        """
        prepare_if_needed(self)
        for split, counts in self.store.manifest["splits"].items():
            if common := counts.get("pairs_also_in_training"):
                logger.warning(
                    f"the training text contains {common:,} of {counts['pairs']:,} {split} pairs, so "
                    f"{split} scores are too high; remove these pairs from the training text{self.overlap_hint}"
                )
        return self

    def is_prepared(self) -> bool:
        """Return whether the prepared corpus exists and is up to date with the corpus files."""
        return check_store(self)[0]

    @property
    def encoding_options(self):
        """Keyword arguments of `preparation.write_chunks` for this problem."""
        return {"filters": self.filters, "noise": self.noise}

    def stored_splits(self):
        """Return {split: iterator over the pairs to encode}."""
        return {split: self.stored_pairs(split) for split in self.splits}

    def stored_pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the pairs to encode for a split."""
        yield from self.pairs(split)
        if split == "train":
            yield from self.further_pairs()

    @functools.cached_property
    def store(self) -> "TokenStore":
        """The prepared corpus, a `TokenStore`."""
        from keras_transformer.data.token_store import TokenStore

        return TokenStore(self.prepared_dir, reverse=self.reversed)

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the prepared corpus."""
        return self.store.tokenizer

    def batches(self, split: str, hparams: HParams, start: int = 0) -> "TokenBatches":
        """Return the `TokenBatches` of a split. Prepare the corpus if necessary.

        Args:
            split: "train" yields endless shuffled batches. Other splits yield each batch once, in order.
            hparams: `HParams` with `batch_tokens`, `max_length`, `max_shapes`, `seed` and `word_dropout`.
            start: Index of the first batch, that is, the step at which training resumes.
        """
        from keras_transformer.backend.loading import load_keras

        load_keras()
        from keras_transformer.data.batch_plan import BatchPlan
        from keras_transformer.data.token_batches import TokenBatches

        training = split == "train"
        prepare_if_needed(self)
        pairs = self.store.split(split)
        try:
            plan = BatchPlan(
                pairs.index, hparams.batch_tokens, seed=hparams.seed, shuffle=training,
                max_length=hparams.max_length if training else None, max_shapes=hparams.max_shapes,
            )  # fmt: skip
        except UserError as error:
            raise error if training else UserError(f"the {split} split: {error}") from None
        hidden = {}
        if training and hparams.word_dropout:
            hidden = {"word_dropout": hparams.word_dropout, "hidden_ids": self.tokenizer.hidden_ids}
        return TokenBatches(pairs, plan, start=start, endless=training, **hidden)


def load_problem(name: str, **arguments: Any) -> Problem:
    """Return the problem registered as `name`.

    Args:
        name: A registered name.
        **arguments: `data_dir`, `raw_dir` and the parameters of the problem.

    Raises:
        UserError: The problem or a parameter does not exist, a value is out of range, or the class lacks a method.
    """
    registry.load_catalog()
    problem = registry.problems.get(name)
    for method in ("pairs", "make_tokenizer", "score"):
        if getattr(problem, method) is getattr(Problem, method):
            raise UserError(
                f"problem {name!r}: class {problem.__name__} must define {method}(). See {__name__}.Problem."
            )
    known = [field.name for field in dataclasses.fields(problem)]
    for argument in arguments:
        if argument not in known:
            raise unknown(f"parameter of {name}", argument, known)
    return problem(
        **{key: _as_text(value) if key in ("data_dir", "raw_dir") else value for key, value in arguments.items()}
    )


def parse_parameters(name, texts):
    """Parse {parameter: text}, as in `--set problem.PARAMETER=TEXT`. Return the parameters of problem `name`."""
    registry.load_catalog()
    problem = registry.problems.get(name)
    return {parameter: parse_value(problem, parameter, text, f"problem {name}") for parameter, text in texts.items()}


def problem_parameters(name):
    """Return the names of the parameters of a problem, which `--set problem.NAME=VALUE` may set."""
    registry.load_catalog()
    fields = dataclasses.fields(registry.problems.get(name))
    return {field.name for field in fields if "doc" in field.metadata}


def _as_text(path):
    return None if path is None else str(path)
