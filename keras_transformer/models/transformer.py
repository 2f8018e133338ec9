"""The Transformer (§3)."""

import contextlib
import dataclasses
import inspect
import itertools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config import registry
from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import BOS
from keras_transformer.layers.attention import padding_mask
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TiedEmbedding
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.stack import StackLayer
from keras_transformer.models.seq2seq_model import Seq2SeqModel
from keras_transformer.utils.errors import UserError


class DecoderCache(NamedTuple):
    """The decoder's key/value cache for a batch in a search. Lists have one entry per decoder layer.

    A *node* is one target position of one beam, with its keys and values. For each sentence, the length axis
    contains the nodes of all beams.
    """

    source: Any
    """int `[batch, source_length]`."""
    memory: list
    """Keys and values of the encoder's output, `[batch, heads, source_length, d]` each."""
    past: list
    """Keys and values of earlier nodes, `[batch, heads, past_length, d]` each. Steps only read them."""
    recent: list
    """Keys and values of recent nodes, `[batch, heads, recent_length, d]` each. Steps write them."""
    kernels: list
    """`fused_kernel` of each self-attention, computed once for all steps."""


@contextlib.contextmanager
def automatic_names():
    """Number Keras' automatic names, such as dense_1, from the start, so that all models of a class have equal names.

    Layers of plug-ins may contain layers without names, and checkpoints identify weights by their names.
    """
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

    numbers = get_global_attribute("object_name_uids")
    set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        set_global_attribute("object_name_uids", numbers)


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(Seq2SeqModel):
    """Encoder-decoder model with a shared vocabulary (§3).

    Args:
        vocab_size: Number of tokens in the vocabulary.
        hparams: `HParams`, or a dictionary of its fields (default: the paper's base model, with `d_ff` equal to
            4 · `d_model`).
        **fields: Fields of `HParams` to change, such as `num_layers=2`, and Keras' `name`, `dtype` and `trainable`.

    Call arguments:
        inputs: (source, decoder_input), int `[batch, source_length]` and `[batch, target_length]`, where 0 is padding.
            The decoder's input is the target shifted right by one position, and begins with BOS.
        training: Whether to apply dropout.

    Returns:
        Logits `[batch, target_length, vocab_size]`.

    Raises:
        UserError: A field of `HParams` is unknown or out of range.
    """

    layer_arguments: dict = {}
    """Arguments for all encoder and decoder layers, in addition to those from `HParams`."""

    @automatic_names()
    def __init__(self, vocab_size: int, hparams: HParams | dict | None = None, **fields: Any):
        base = {name: fields.pop(name) for name in ("name", "dtype", "trainable") if name in fields}
        super().__init__(**{"name": "transformer", **base})
        if hparams is None:
            hparams = HParams()
            fields = {"d_ff": 4 * fields.get("d_model", hparams.d_model), **fields}
        hparams = (hparams if isinstance(hparams, HParams) else HParams().replace(**hparams)).replace(**fields)
        self.vocab_size, self.hparams = vocab_size, hparams
        # Leave room for the layers' offsets within the 32 bits of a dropout seed.
        seed = hparams.seed * 10_000 % 2**31
        policy, width = self.dtype_policy, hparams.d_model
        # Read the layers' arguments from hparams by name, so that a new argument needs no change here.
        names = inspect.signature(StackLayer).parameters.keys() - {"seed"}
        shared = {name: getattr(hparams, name) for name in names if hasattr(hparams, name)}
        shared |= self.layer_arguments
        self.embedding = TiedEmbedding(vocab_size, width, seed, dtype=policy, name="embedding")
        position_class = registry.positions.get(hparams.positions)
        self.positions = position_class(width, hparams.max_length, seed + 1, dtype=policy, name="positions")
        self.source_dropout = Dropout(hparams.dropout, seed + 2, dtype=policy, name="source_dropout")
        self.target_dropout = Dropout(hparams.dropout, seed + 3, dtype=policy, name="target_dropout")
        self.encoder = Encoder(
            hparams.num_layers, attention=hparams.encoder_attention, attention_window=hparams.attention_window,
            seed=seed + 1000, dtype=policy, name="encoder", **shared,
        )  # fmt: skip
        self.decoder = Decoder(hparams.decoder_depth, seed=seed + 5000, dtype=policy, name="decoder", **shared)
        self.build()

    @classmethod
    def from_hparams(
        cls, hparams: HParams, problem: Any = None, *, vocab_size: int | None = None, **kwargs: Any
    ) -> "Transformer":
        """Return a new model of the class named by `hparams.model`.

        If called on a subclass of `Transformer`, the method ignores `hparams.model` and returns an instance of the
        subclass. The random initial weights depend only on `hparams.seed`.

        Args:
            hparams: `HParams`.
            problem: The problem that provides the vocabulary. The method prepares the problem if necessary.
            vocab_size: Number of tokens in the vocabulary, if `problem` is None.
            **kwargs: Other arguments of the constructor.

        Raises:
            UserError: Both `problem` and `vocab_size` are given, or neither.
        """
        if cls is Transformer:
            cls = registry.models.get(hparams.model)
        if (problem is None) == (vocab_size is None):
            given = "neither" if problem is None else "both"
            raise UserError(f"Transformer.from_hparams requires either problem or vocab_size, got {given}. Pass one.")
        if problem is None:
            return cls(vocab_size, hparams, **kwargs)  # type: ignore[arg-type]
        tokenizer = problem.prepare().tokenizer
        model = cls(tokenizer.vocab_size, hparams, **kwargs)
        model.adopt(tokenizer)
        return model

    def adopt(self, tokenizer: Any) -> None:
        """Initialize state that depends on the tokenizer. The base class has no such state."""

    def build(self, input_shape=None):
        if self.built:
            return
        # The weights do not depend on these shapes, but `summary` shows the resulting output shapes.
        shape = (None, None, self.hparams.d_model)
        self.embedding.build((None, None))
        self.positions.build((None,))
        self.source_dropout.build(shape)
        self.target_dropout.build(shape)
        self.encoder.build(shape)
        self.decoder.build(shape, shape)
        if not all(layer.built for layer in self._flatten_layers(include_self=False)):
            # The first call of a plug-in's layer builds the layers inside it. Keras makes this call without data.
            tokens = keras.KerasTensor((None, None), "int32")
            self.compute_output_spec((tokens, tokens))
        self.build_metrics()
        self.built = True

    @property
    def vocabulary_weights(self):
        """List of weights whose first axis is the vocabulary."""
        return [self.embedding.table]

    @property
    def projection(self):
        """Matrix `[vocab_size, d_model]` that maps states to logits, or None if `logits` computes them differently."""
        own_logits = type(self).logits is not Transformer.logits or type(self.embedding) is not TiedEmbedding
        return None if own_logits else self.embedding.table

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.logits(self.states(inputs, training=training))

    def functional(self) -> keras.Model:
        """Return a functional Keras model with the same layers and weights.

        Use the functional model for `keras.utils.plot_model`, which draws a subclassed model as a single box, and for
        the outputs of individual layers, such as `keras.Model(model.inputs, model.get_layer("encoder").output)`. Save
        and clone the subclassed model instead, because Keras can neither load nor clone the functional model.

        Returns:
            Model that maps (source, decoder_input), int `[batch, source_length]` and `[batch, target_length]`, to
            logits `[batch, target_length, vocab_size]`.
        """
        inputs = tuple(keras.Input((None,), dtype="int32", name=name) for name in ("source", "decoder_input"))
        project = keras.layers.Lambda(
            self.logits, lambda shape: (*shape[:-1], self.vocab_size), dtype=self.dtype_policy, name="logits"
        )
        return keras.Model(inputs, project(self.states(inputs)), name=self.name)

    def states(self, inputs, training=False):
        """Return the decoder's states `[batch, target_length, d_model]`."""
        source, decoder_input = inputs
        memory = self.encode(source, training=training)
        x = self.target_dropout(self._embed(decoder_input), training=training)
        mask = self.memory_mask(source, decoder_input)
        return self.decoder(x, memory, cross_mask=mask, training=training)

    def memory_mask(self, source: Any, decoder_input: Any) -> Any:
        """Return the cross-attention mask, which by default hides only padding.

        Args:
            source: int `[batch, source_length]`.
            decoder_input: int `[batch, target_length]`.

        Returns:
            bool, broadcasts to `[batch, heads, target_length, source_length]`. False hides a source token.
        """
        return padding_mask(source)

    def step_memory_mask(self, source: Any, tokens: Any) -> Any:
        """Return `memory_mask` for the next target position of each hypothesis of a search.

        Args:
            source: int `[batch, source_length]`.
            tokens: int `[batch, beams, length]`, the hypotheses so far, without BOS and padded with PAD.

        Returns:
            bool, broadcasts to `[batch, heads, beams, source_length]`.
        """
        return padding_mask(source)

    def logits(self, states: Any) -> Any:
        """Project states `[..., d_model]` to logits `[..., vocab_size]` (§3.4)."""
        return self.embedding.logits(states)

    def encode(self, source: Any, training: bool = False) -> Any:
        """Return the encoder's output `[batch, source_length, d_model]` for `source`, int `[batch, source_length]`."""
        x = self.source_dropout(self._embed(source), training=training)
        return self.encoder(x, attention_mask=padding_mask(source), training=training)

    @contextlib.contextmanager
    def recorded_attention(self):
        """Record the attention weights of all calls inside a `with` block.

        Yields:
            Dictionary with the keys "encoder", "decoder" and "cross". Its values are lists, to which each call appends
            the weights of each layer, float32 `[batch, heads, query_length, key_length]`. The weights of an attention
            class from a plug-in may have a different shape.
        """
        layers = {
            "encoder": [layer.self_attention for layer in self.encoder.layers],
            "decoder": [layer.self_attention for layer in self.decoder.layers],
            "cross": [layer.cross_attention for layer in self.decoder.layers],
        }
        recorded = {kind: [] for kind in layers}
        for kind, attentions in layers.items():
            for attention in attentions:
                attention.on_weights = recorded[kind].append
        try:
            yield recorded
        finally:
            for attention in itertools.chain(*layers.values()):
                attention.on_weights = None

    def start_cache(self, source: Any) -> DecoderCache:
        """Encode `source`, int `[batch, source_length]`, and return a `DecoderCache` without nodes."""
        memory = self.encode(source)
        projected = [layer.cross_attention.project_memory(memory) for layer in self.decoder.layers]
        return DecoderCache(source, projected, self.empty_nodes(ops.shape(source)[0], 0), [], [])

    def empty_nodes(self, batch: Any, count: Any) -> list:
        """Return zeros for the (keys, values) of `count` nodes, `[batch, heads, count, d]` each, per decoder layer."""
        heads, d_k, d_v = self.hparams.num_heads, self.hparams.key_width, self.hparams.value_width
        return [
            tuple(ops.zeros((batch, heads, count, width), dtype=self.compute_dtype) for width in (d_k, d_v))
            for _ in self.decoder.layers
        ]

    def step_kernels(self) -> list:
        """Return the value of `DecoderCache.kernels`, one kernel per decoder layer."""
        return [layer.self_attention.fused_kernel() for layer in self.decoder.layers]

    def decode_step(self, tokens: Any, index: Any, cache: DecoderCache, node: Any, path: Any) -> tuple[Any, list]:
        """Run the decoder on one position of every hypothesis of a search.

        Args:
            tokens: int `[batch, beams, length]`, the hypotheses so far, without BOS and padded with PAD.
            index: Scalar int, the number of tokens so far.
            cache: `DecoderCache`, with free space in `recent`.
            node: Scalar int, the index in `recent` at which the step writes the nodes of this position.
            path: bool `[batch, beams, past_length + recent_length]`, True for the nodes of each hypothesis, including
                the node of this position.

        Returns:
            Logits `[batch, beams, vocab_size]`, and `cache.recent` with the nodes of this position.
        """
        x = self.embedding(last_tokens(tokens, index)) + self.positions(ops.reshape(index, (1,)))
        memory_mask, recent = self.step_memory_mask(cache.source, tokens), []
        for layer, *caches in zip(self.decoder.layers, cache.kernels, cache.past, cache.recent, cache.memory):
            x, keys_and_values = layer.step(x, node, *caches, path[:, None], memory_mask)
            recent.append(keys_and_values)
        return self.logits(self.decoder.normalize(x)), recent

    def flops(self, rows: int, source_length: int, target_length: int) -> int:
        """Return the number of floating-point operations in the matrix products of a forward pass.

        A multiply-add counts as two. Padding and masked positions count like all others.
        """
        h, decoder = self.hparams, self.decoder.layers[0]
        # A plug-in's attention class without `flops` counts as full attention.
        encoder_attention = getattr(self.encoder.layers[0].self_attention, "flops", decoder.self_attention.flops)
        feed_forward = 4 * rows * h.d_model * h.d_ff  # per position
        encoder_layer = encoder_attention(rows, source_length, source_length) + source_length * feed_forward
        decoder_layer = decoder.self_attention.flops(rows, target_length, target_length)
        decoder_layer += decoder.cross_attention.flops(rows, target_length, source_length)
        decoder_layer += target_length * feed_forward
        logits = 2 * rows * target_length * h.d_model * self.vocab_size
        return h.num_layers * encoder_layer + h.decoder_depth * decoder_layer + logits

    def _embed(self, tokens):
        """Return the sum of token embeddings and positional encodings `[batch, length, d_model]` (§3.4, §3.5)."""
        return self.positions(self.embedding(tokens))

    def get_config(self):
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        hparams = dataclasses.asdict(self.hparams)
        base = {"name": self.name, "trainable": self.trainable, "dtype": policy}
        return {"vocab_size": self.vocab_size, "hparams": hparams, **base}


def last_tokens(tokens, index):
    """Return the token before position `index` of each hypothesis, `[batch, beams]`, or BOS if the index is 0."""
    previous = ops.take(tokens, ops.maximum(index - 1, 0), axis=2)
    return ops.where(index == 0, BOS, previous)
