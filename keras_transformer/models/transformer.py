"""The Transformer (§3): encoder and decoder joined by one embedding."""

import contextlib
import dataclasses
import inspect
import itertools
from typing import Any

import keras
from keras import ops

from keras_transformer.config import registry
from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.layers.attention import PaddingMask
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TiedEmbedding
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.position import PositionIds
from keras_transformer.layers.stack import StackLayer
from keras_transformer.layers.word_heads import begun, word_mask, word_numbers
from keras_transformer.models.seq2seq_model import Seq2SeqModel
from keras_transformer.utils.errors import UserError


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(Seq2SeqModel):
    """Encoder and decoder over one vocabulary (§3).

    Args:
        vocab_size: Number of tokens.
        hparams: `HParams`, or the dictionary of its fields (default: those of the paper's base model, with the `d_ff`
            of its proportions, 4 · `d_model`).
        **fields: Fields of `HParams` to change, such as `num_layers=2`; also `name`, `dtype` and `trainable` of Keras.

    Call arguments:
        inputs: (source, decoder_input), int `[batch, source_length]` and `[batch, target_length]`; 0 is padding.
            The decoder's input is the target shifted right by one: it begins with BOS.
        training: Whether to drop.

    Returns:
        Logits `[batch, target_length, vocab_size]`.

    Raises:
        UserError: A field of `HParams` is unknown or out of range.
    """

    def __init__(self, vocab_size: int, hparams: HParams | dict | None = None, **fields: Any):
        base = {name: fields.pop(name) for name in ("name", "dtype", "trainable") if name in fields}
        super().__init__(**{"name": "transformer", **base})
        if hparams is None:
            hparams = HParams()
            fields = {"d_ff": 4 * fields.get("d_model", hparams.d_model), **fields}
        hparams = (hparams if isinstance(hparams, HParams) else HParams(**hparams)).replace(**fields)
        self.vocab_size, self.hparams = vocab_size, hparams
        # Room for the layers' own numbers, within the 32 bits that a mask's seed may have.
        seed = hparams.seed * 10_000 % 2**31
        policy, width = self.dtype_policy, hparams.d_model
        # Layers take hparams by name, so that a new one of a layer need not be listed here.
        names = inspect.signature(StackLayer).parameters.keys() - {"seed"}
        shared = {name: getattr(hparams, name) for name in names if hasattr(hparams, name)}
        self.embedding = TiedEmbedding(vocab_size, width, seed, dtype=policy, name="embedding")
        position_class = registry.positions.get(hparams.positions)
        self.positions = position_class(width, hparams.max_length, seed + 1, dtype=policy, name="positions")
        self.position_ids = PositionIds(name="position_ids")
        self.padding_mask = PaddingMask(name="padding_mask")
        self.word_starts = None
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
        """Returns a new model; its initial weights depend on `hparams.seed` alone.

        Args:
            hparams: `HParams`.
            problem: The problem whose vocabulary the model speaks; prepared where it is not.
            vocab_size: Number of tokens, in place of a problem.
        """
        if (problem is None) == (vocab_size is None):
            raise UserError("Transformer.from_hparams takes a problem or a vocab_size, and not both")
        if problem is None:
            return cls(vocab_size, hparams, **kwargs)  # type: ignore[arg-type]
        tokenizer = problem.prepare().tokenizer
        model = cls(tokenizer.vocab_size, hparams, **kwargs)
        model.adopt(tokenizer)
        return model

    def adopt(self, tokenizer: Any) -> None:
        """Tells a new model what it has to know of its vocabulary; a checkpoint holds it.

        Raises:
            UserError: It counts words, and the tokenizer does not tell where one begins.
        """
        if self.word_starts is None:
            return
        if (starts := tokenizer.word_starts) is None:
            raise UserError("word_heads need a vocabulary that tells where words begin; choose word_heads=0")
        self.word_starts.assign(starts)

    def build(self, input_shape=None):
        if self.built:
            return
        # With shapes, although the weights do not depend on them: `summary` shows the output shapes that follow.
        shape = (None, None, self.hparams.d_model)
        self.embedding.build((None, None))
        self.positions.build((None,))
        self.source_dropout.build(shape)
        self.target_dropout.build(shape)
        if self.hparams.word_heads:
            self.word_starts = self.add_weight(
                name="word_starts", shape=(self.vocab_size,), initializer="zeros", trainable=False, dtype="float32",
                autocast=False,  # bfloat16 counts to 256 only
            )  # fmt: skip
        self.encoder.build(shape)
        self.decoder.build(shape, shape)
        self.build_metrics()
        self.built = True

    @property
    def vocabulary_weights(self):
        return [self.embedding.table]

    @property
    def projection(self):
        own_logits = type(self).logits is not Transformer.logits or type(self.embedding) is not TiedEmbedding
        return None if own_logits else self.embedding.table

    @property
    def vocabulary_tables(self):
        return [] if self.word_starts is None else [self.word_starts]

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.logits(self.states(inputs, training=training))

    def functional(self) -> keras.Model:
        """Return a functional Keras model of the same layers and weights.

        `keras.utils.plot_model` draws a subclassed model as a single box, and a functional model part by part. The
        outputs of all parts are available, for example `keras.Model(model.inputs, model.get_layer("encoder").output)`.

        Returns:
            Model from (source, decoder_input), int `[batch, source_length]` and `[batch, target_length]`, to logits
            `[batch, target_length, vocab_size]`.
        """
        inputs = tuple(keras.Input((None,), dtype="int32", name=name) for name in ("source", "decoder_input"))
        project = keras.layers.Lambda(
            self.logits, lambda shape: (*shape[:-1], self.vocab_size), dtype=self.dtype_policy, name="logits"
        )
        return keras.Model(inputs, project(self.states(inputs)), name=self.name)

    def states(self, inputs, training=False):
        """Returns the decoder's states `[batch, target_length, d_model]`."""
        source, decoder_input = inputs
        memory, source_words = self.encode(source, training=training)
        if self.word_starts is None:
            mask = self.padding_mask(source)
        else:
            mask = self._memory_mask(source_words, self._words(decoder_input))
        x = self.target_dropout(self._embed(decoder_input), training=training)
        return self.decoder(x, memory, cross_mask=mask, training=training)

    def logits(self, states: Any) -> Any:
        """Projects states `[..., d_model]` to logits `[..., vocab_size]` (§3.4)."""
        return self.embedding.logits(states)

    def encode(self, source: Any, training: bool = False) -> tuple[Any, Any]:
        """Runs the encoder.

        Args:
            source: int `[batch, source_length]`.

        Returns:
            Its output `[batch, source_length, d_model]`, and the number of each token's word, int32
            `[batch, source_length]`: −1 of padding, 0 of all others where the model does not count words.
        """
        x = self.source_dropout(self._embed(source), training=training)
        output = self.encoder(x, attention_mask=self.padding_mask(source), training=training)
        return output, ops.where(source != PAD, self._words(source), -1)

    @contextlib.contextmanager
    def recorded_attention(self):
        """Makes calls inside a `with` block leave their attention weights behind.

        Yields:
            {"encoder", "decoder", "cross"}: lists, of which each call's layers fill one entry after the other, float32
            `[batch, heads, query_length, key_length]`. A plug-in's attention may have weights of its own kind.
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

    def project_memory(self, memory):
        """Returns each decoder layer's (keys, values) of `memory`: `[batch, heads, source_length, d]`."""
        return [layer.cross_attention.project_memory(memory) for layer in self.decoder.layers]

    def empty_cache(self, batch, length):
        """Returns each decoder layer's still empty self-attention (keys, values): `[batch, heads, length, d]`."""
        heads, d_k, d_v = self.hparams.num_heads, self.hparams.key_width, self.hparams.value_width
        return [
            tuple(ops.zeros((batch, heads, length, width), dtype=self.compute_dtype) for width in (d_k, d_v))
            for _ in self.decoder.layers
        ]

    def step_kernels(self):
        """Returns what each decoder layer's steps need of its kernels; made once for many steps."""
        return [layer.self_attention.fused_kernel() for layer in self.decoder.layers]

    def words_after(self, tokens):
        """Returns the word whose turn it is behind each hypothesis, int32 `[batch, beams]`.

        Args:
            tokens: int `[batch, beams, length]`: symbols so far, then padding; no BOS.
        """
        if self.word_starts is None:
            return ops.zeros_like(tokens[:, :, 0], dtype="int32")
        return ops.sum(begun(tokens, self.word_starts), axis=2)

    def decode_step(self, tokens, index, words, node, kernels, past, recent, memory, past_mask, source_words):
        """Runs the decoder on one position of every beam, with keys and values of the earlier positions kept.

        Args:
            tokens: int `[batch, beams]`, the decoder's input at this position.
            index: Scalar int, the number of positions before this one.
            words: Of `words_after`.
            node: Scalar int, where in `recent` this position is written.
            kernels: Of `step_kernels`.
            past, recent: Each layer's self-attention (keys, values), as `empty_cache` makes them.
            memory: Each layer's cross-attention (keys, values), as `project_memory` makes them.
            past_mask: bool `[batch, beams, past_length + recent_length]`: what comes before each beam, and itself.
            source_words: As `encode` returns them.

        Returns:
            Logits `[batch, beams, vocab_size]`, and `recent` with this position written.
        """
        x = self.embedding(tokens) + self.positions(ops.reshape(index, (1,)))
        memory_mask, written = self._memory_mask(source_words, words), []
        for layer, *parts in zip(self.decoder.layers, kernels, past, recent, memory):
            x, keys_and_values = layer.step(x, node, *parts, past_mask[:, None], memory_mask)
            written.append(keys_and_values)
        return self.logits(self.decoder.normalize(x)), written

    def flops(self, rows: int, source_length: int, target_length: int) -> int:
        """Returns the floating point operations of all matrix products of one forward pass; a multiply-add is two.

        Padding costs as much as tokens do, and hidden positions as much as seen ones.
        """
        h, decoder = self.hparams, self.decoder.layers[0]
        # A plug-in's attention that does not tell its cost counts as full.
        encoder_attention = getattr(self.encoder.layers[0].self_attention, "flops", decoder.self_attention.flops)
        feed_forward = 4 * rows * h.d_model * h.d_ff  # of a position
        encoder_layer = encoder_attention(rows, source_length, source_length) + source_length * feed_forward
        decoder_layer = decoder.self_attention.flops(rows, target_length, target_length)
        decoder_layer += decoder.cross_attention.flops(rows, target_length, source_length)
        decoder_layer += target_length * feed_forward
        logits = 2 * rows * target_length * h.d_model * self.vocab_size
        return h.num_layers * encoder_layer + h.decoder_depth * decoder_layer + logits

    def _embed(self, tokens):
        """`[batch, length]` → `[batch, length, d_model]`: embeddings and positions, summed (§3.4, §3.5)."""
        return self.embedding(tokens) + self.positions(self.position_ids(tokens))

    def _words(self, tokens):
        """int32 `[batch, length]`: the number of each token's word; 0 where the model does not count them."""
        if self.word_starts is None:
            return ops.zeros_like(tokens, dtype="int32")
        return word_numbers(tokens, self.word_starts)

    def _memory_mask(self, source_words, target_words):
        """bool, broadcasts to `[batch, heads, target_length, source_length]`; beams stand where positions do."""
        if self.word_starts is None:
            return (source_words >= 0)[:, None, None]
        return word_mask(target_words, source_words, self.hparams.num_heads, self.hparams.word_heads)

    def get_config(self):
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        hparams = dataclasses.asdict(self.hparams)
        return {"vocab_size": self.vocab_size, "hparams": hparams, "name": self.name, "dtype": policy}
