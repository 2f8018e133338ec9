"""HParams: every number that defines a model and its training, in one frozen, typed, validated dataclass."""

import dataclasses
import math
import os
import types
import typing

from keras_transformer.config import registry
from keras_transformer.utils.errors import UserError, unknown

MOST = 10**9
"""Upper bound of every number that has no lower one of its own: no sensible value is larger, and it fits in int32."""


def setting(default=dataclasses.MISSING, doc="", low=None, high=MOST, choices=None, is_path=False, of_corpus=True):
    """Returns a dataclass field with a description and the values it may have.

    Args:
        default: Its value where nothing else is said.
        doc: One line for `--help`, with the unit.
        low: Least value, if any.
        high: Maximum of a number (default `MOST`).
        choices: The values it may have: a sequence, or a `Registry` whose names they are.
        is_path: Whether it is a path, in which `--set` expands `~`.
        of_corpus: Whether the prepared corpus depends on it, for the settings of a problem.
    """
    metadata = {
        "doc": doc, "low": low, "high": high, "choices": choices, "is_path": is_path, "of_corpus": of_corpus
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HParams:
    """A named set of these is a preset (`hparams/`); `replace` and `--set` change single fields.

    Raises:
        UserError: A value has the wrong type or lies out of range.
    """

    # The model (§3)
    model: str = setting("transformer", "registered model", choices=registry.models)
    num_layers: int = setting(6, "layers N of the encoder, and of the decoder (§3.1)", low=1, high=1000)
    num_decoder_layers: int | None = setting(
        None, "layers of the decoder; none: as many as num_layers (the paper)", low=1, high=1000
    )
    d_model: int = setting(512, "width of every layer's output (§3.1)", low=2, high=65_536)
    d_ff: int = setting(2048, "inner width of the feed-forward layers (§3.3)", low=1, high=1_048_576)
    activation: str = setting(
        "relu", "activation of the feed-forward layers (§3.3); relu is the paper's", choices=("relu", "swish", "gelu")
    )
    num_heads: int = setting(8, "attention heads h (§3.2.2)", low=1, high=1024)
    d_k: int | None = setting(None, "width of a head's queries and keys; none: d_model / num_heads", low=1, high=65_536)
    d_v: int | None = setting(None, "width of a head's values; none: d_model / num_heads", low=1, high=65_536)
    positions: str = setting("sinusoidal", "positional encoding (§3.5)", choices=registry.positions)
    norm: str = setting("post", "where a sub-layer is normalised (§3.1)", choices=registry.norms)
    encoder_attention: str = setting("full", "self-attention of the encoder", choices=registry.attentions)
    attention_window: int | None = setting(
        None, "positions r that a position attends to, of encoder_attention=restricted (§4)", low=1
    )
    # Regularisation (§5.4)
    dropout: float = setting(0.1, "dropout of sub-layer outputs and of embeddings (§5.4)", low=0, high=0.99)
    attention_dropout: float = setting(0.0, "dropout of attention weights (not the paper's)", low=0, high=0.99)
    activation_dropout: float = setting(
        0.0, "dropout inside the feed-forward layers (not the paper's)", low=0, high=0.99
    )
    word_dropout: float = setting(
        0.0, "share of source tokens that are unknown in training (not the paper's)", low=0, high=0.99
    )
    label_smoothing: float = setting(0.1, "share ε of the label spread over all symbols (§5.4)", low=0, high=0.99)
    r_drop: float = setting(
        0.0, "weight α of the divergence of two passes with other dropout (R-Drop, not the paper's); 0: one pass",
        low=0, high=100,
    )  # fmt: skip
    # The optimizer (§5.3)
    learning_rate_scale: float = setting(1.0, "factor on the paper's learning rate", low=1e-30, high=1000)
    warmup_steps: int = setting(4000, "updates of linear warm-up (§5.3)", low=1)
    adam_beta_1: float = setting(0.9, "decay of Adam's mean", low=0, high=0.999999)
    adam_beta_2: float = setting(0.98, "decay of Adam's variance", low=0, high=0.9999999)
    adam_epsilon: float = setting(1e-9, "Adam's ε", low=1e-30)
    clip_norm: float | None = setting(
        None, "largest norm of an update's gradients, which are scaled down to it; none: any (the paper)", low=1e-9
    )
    ema_decay: float | None = setting(
        None,
        "decay of a moving average of the weights, the checkpoint `ema`; none: there is none",
        low=0,
        high=0.999999,
    )
    # Batches and the run (§5.1, §5.2)
    batch_tokens: int = setting(
        25000, "most source and most target tokens of an update, padding included (§5.1)", low=1
    )
    max_length: int = setting(256, "longest source or target in training, in tokens with EOS", low=1)
    train_steps: int = setting(100_000, "updates", low=1)
    seed: int = setting(1, "seed of initial weights, data order and dropout", low=0, high=2**31 - 1)
    on_nonfinite: str = setting(
        "stop", "what to do where a loss or gradient is not finite: stop, or skip the update", choices=("stop", "skip")
    )
    max_skipped: int = setting(10, "most updates that on_nonfinite=skip skips", low=1, high=100)
    # Evaluation and checkpoints (§6.1)
    eval_steps: int = setting(1000, "updates between evaluations", low=1)
    decode_steps: int | None = setting(
        None, "the first evaluation from each multiple of it on decodes, too; none, or where best_metric is the score: "
        "each does",
        low=1,
    )  # fmt: skip
    checkpoint_steps: int = setting(1000, "updates between checkpoints", low=1)
    checkpoint_minutes: float = setting(10.0, "most minutes between checkpoints; 0: by steps alone", low=0)
    best_metric: str = setting(
        "score", "what makes a checkpoint the best: the problem's score, nats a token, or the smoothed loss",
        choices=("score", "nll", "loss"),
    )  # fmt: skip
    patience: int | None = setting(
        None, "evaluations without a better one after which training ends; none: never", low=1
    )
    keep_checkpoints: int = setting(5, "latest checkpoints kept beside the best", low=1)
    average_last: int = setting(5, "maximum number of checkpoints to average, up to keep_checkpoints", low=1)
    # Decoding (§6.1)
    beam_size: int = setting(4, "beams a sentence", low=1, high=1000)
    alpha: float = setting(0.6, "exponent α of the length penalty", low=0, high=10)
    extra_length: int = setting(50, "most target tokens beyond the source's length", low=1, high=10_000)

    def __post_init__(self):
        validate(self, "hparams")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise UserError(
                f"hparams: d_model={self.d_model} is not divisible by num_heads={self.num_heads}; "
                "change one of them or give d_k and d_v"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(f"hparams: sinusoidal positions need an even d_model, not {self.d_model}")
        if self.r_drop and not (self.dropout or self.attention_dropout or self.activation_dropout):
            raise UserError(
                f"hparams: r_drop={self.r_drop:g} compares passes that differ by their dropout, and there is none; "
                "give dropout, or r_drop=0"
            )
        if self.encoder_attention == "restricted" and self.attention_window is None:
            raise UserError("hparams: encoder_attention=restricted needs attention_window, such as attention_window=32")
        # A plug-in's attention may take a window, too.
        if self.encoder_attention in ("full", "additive") and self.attention_window is not None:
            raise UserError(
                f"hparams: encoder_attention={self.encoder_attention} has no attention_window; "
                "leave it out or give encoder_attention=restricted"
            )

    @property
    def passes(self) -> int:
        """How often an update goes forward through the model: twice with R-Drop."""
        return 2 if self.r_drop else 1

    @property
    def decoding_interval(self) -> int:
        """The first evaluation from each multiple of these updates on decodes; `eval_steps` where each does."""
        return self.decode_steps if self.decode_steps and self.best_metric != "score" else self.eval_steps

    @property
    def decoder_depth(self) -> int:
        """Number of layers of the decoder."""
        return self.num_decoder_layers or self.num_layers

    @property
    def key_width(self) -> int:
        """Width of one head's queries and keys."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """Width of one head's values."""
        return self.d_v or self.d_model // self.num_heads

    def replace(self, **changes: typing.Any) -> "HParams":
        """Returns a copy with some fields changed.

        Raises:
            UserError: No field has that name, or the value is not one of its own.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("hparams field", name, names)
        return dataclasses.replace(self, **changes)


def load_hparams(name: str, **changes: typing.Any) -> HParams:
    """Returns the `HParams` registered as `name`, with some fields changed."""
    registry.load_catalog()
    return registry.hparams.get(name)().replace(**changes)


def changed_fields(preset, values):
    """Returns {field: value} of the hparams that differ from a preset's as it is now.

    Args:
        preset: Its name; None: all fields are returned.
        values: {field: value}; a field that came later, and so is not there, has its default.
    """
    values = {**dataclasses.asdict(HParams()), **values}
    usual = dataclasses.asdict(load_hparams(preset)) if preset else {}
    return {field: value for field, value in values.items() if field not in usual or value != usual[field]}


def field_types(settings_class):
    """Returns {field name: (type, whether it may be None)} of a dataclass of settings."""
    hints = typing.get_type_hints(settings_class)
    result = {}
    for field in dataclasses.fields(settings_class):
        hint, optional = hints[field.name], False
        if isinstance(hint, types.UnionType):
            optional = type(None) in hint.__args__
            hint = next(option for option in hint.__args__ if option is not type(None))
        result[field.name] = (hint, optional)
    return result


def validate(settings, owner):
    """Checks the fields of a dataclass made with `setting`.

    Raises:
        UserError: One has the wrong type or lies out of range; it says which and what is possible.
    """
    fields = {field.name: field for field in dataclasses.fields(settings)}
    for name, (kind, optional) in field_types(type(settings)).items():
        metadata, value = fields[name].metadata, getattr(settings, name)
        if "doc" not in metadata or (value is None and optional):
            continue
        if kind is float and type(value) is int:
            value = float(value)
            object.__setattr__(settings, name, value)
        if type(value) is not kind:
            raise UserError(f"{owner}: {name} takes {_KINDS[kind]}, not {value!r}")
        if kind is float and not math.isfinite(value):
            raise UserError(f"{owner}: {name} must be finite, not {value}")
        low, high, choices = metadata["low"], metadata["high"], metadata["choices"]
        if isinstance(choices, registry.Registry):
            choices.check(value)
        elif choices is not None and value not in choices:
            raise unknown(name, value, choices)
        if kind in (int, float) and ((low is not None and value < low) or value > high):
            bounds = f"at most {high}" if low is None else f"from {low} to {high}"
            raise UserError(f"{owner}: {name} must be {bounds}, not {value}")


def upper_bound(name):
    """Return the maximum of a numeric field of `HParams`."""
    return {field.name: field.metadata["high"] for field in dataclasses.fields(HParams)}[name]


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def parse_value(settings_class, name, text, owner):
    """Returns the value that `text` stands for, as field `name` of a dataclass wants it.

    Raises:
        UserError: There is no such field, or the text is no such value.
    """
    known = field_types(settings_class)
    documented = [field.name for field in dataclasses.fields(settings_class) if "doc" in field.metadata]
    if name not in documented:
        raise unknown(f"{owner} field", name, documented)
    kind, optional = known[name]
    if optional and text.lower() == "none":
        return None
    if not text.strip():
        raise UserError(f"{owner}: {name} must not be empty")
    if {field.name: field.metadata for field in dataclasses.fields(settings_class)}[name].get("is_path"):
        text = os.path.expanduser(text)
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise UserError(f"{owner}: {name} takes {_KINDS[kind]}, not {text!r}") from None
