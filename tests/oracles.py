"""Reference implementations of the paper's equations in float64 NumPy, written from the paper, not from the package.

Weights are dictionaries with these keys:

- attention: "query", "key", "value" and "output", plus "score" for additive attention
- feed-forward: "kernel_1", "bias_1", "kernel_2", "bias_2" and "activation"
- normalization: "gamma" and "beta"

The functions at the end of the file extract these dictionaries from the package's layers.
"""

import math

import numpy as np

LAYER_NORM_EPSILON = 1e-6


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(query, key, value, mask=None):
    """Return (output, attention weights) of equation 1. Masked scores are -∞ (§3.2.3).

    Shapes: query `[..., n, d_k]`, key `[..., m, d_k]`, value `[..., m, d_v]`, mask (bool) `[..., n, m]`.
    """
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights


def additive_attention(query, key, value, score, mask=None):
    """Return (output, attention weights) of additive attention (Bahdanau et al. 2015, A.1.2).

    Shapes: query `[..., n, d_k]`, key `[..., m, d_k]`, score `[d_k]`, value `[..., m, d_v]`, mask (bool) `[..., n, m]`.
    """
    scores = np.empty((*query.shape[:-1], key.shape[-2]))
    for i in range(query.shape[-2]):
        for j in range(key.shape[-2]):
            scores[..., i, j] = np.tanh(query[..., i, :] + key[..., j, :]) @ score
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights


def neighbourhood(length, window):
    """Return the bool mask `[n, n]` of restricted attention (§4): position i attends to `window` positions around i."""
    legal = np.zeros((length, length), bool)
    for i in range(length):
        first = i - window // 2
        legal[i, max(first, 0) : max(first + window, 0)] = True
    return legal


def multi_head_attention(x, memory, weights, num_heads, mask=None):
    """Compute multi-head attention (§3.2.2) in a loop over the heads.

    Args:
        x: Queries `[batch, n, d]`.
        memory: Keys and values `[batch, m, d]`.
        weights: Weights of the attention layer.
        num_heads: Number of attention heads.
        mask: Bool, `[batch or 1, n or 1, m]` for all heads, or `[batch, num_heads, n, m]` for each head.
    """
    heads = []
    for head in range(num_heads):
        w_q, w_k, w_v = (np.split(weights[name], num_heads, axis=1)[head] for name in ("query", "key", "value"))
        projected = (x @ w_q, memory @ w_k, memory @ w_v)
        seen = mask[:, head] if mask is not None and mask.ndim == 4 else mask
        if "score" in weights:
            heads.append(additive_attention(*projected, weights["score"][head], seen)[0])
        else:
            heads.append(attention(*projected, seen)[0])
    return np.concatenate(heads, axis=-1) @ weights["output"]


def feed_forward(x, weights):
    """Apply the feed-forward network of equation 2. `weights["activation"]` is the name of the activation."""
    activate = {"relu": lambda z: np.maximum(0, z), "swish": lambda z: z / (1 + np.exp(-z)), "gelu": gelu}
    inner = activate[weights["activation"]](x @ weights["kernel_1"] + weights["bias_1"])
    return inner @ weights["kernel_2"] + weights["bias_2"]


def gelu(x):
    """Return x Φ(x), where Φ is the cumulative distribution function of the standard normal distribution."""
    return x * np.vectorize(lambda z: (1 + math.erf(z / math.sqrt(2))) / 2)(x)


def layer_norm(x, weights):
    """Normalize the last axis (Ba et al. 2016)."""
    deviation = x - x.mean(axis=-1, keepdims=True)
    variance = (deviation**2).mean(axis=-1, keepdims=True)
    return deviation / np.sqrt(variance + LAYER_NORM_EPSILON) * weights["gamma"] + weights["beta"]


def post_norm(x, sublayer, norm):
    """Apply a sublayer, add the input and normalize the sum (§3.1)."""
    return layer_norm(x + sublayer(x), norm)


def pre_norm(x, sublayer, norm):
    """Normalize the input, apply a sublayer and add the original input. The paper does not use this order."""
    return x + sublayer(layer_norm(x, norm))


def sinusoids(positions, d_model):
    """Return the positional encodings `[len(positions), d_model]` of §3.5."""
    encoding = np.empty((len(positions), d_model))
    for row, position in zip(encoding, positions):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            row[2 * i], row[2 * i + 1] = math.sin(angle), math.cos(angle)
    return encoding


def learning_rate(d_model, step, warmup_steps=4000):
    """Return the learning rate of equation 3. Steps count from 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def cross_entropy(labels, logits, label_smoothing=0.0):
    """Return the label-smoothed cross-entropy -Σ q log p at each position, with q = (1 - ε) one-hot + ε/V (§5.4).

    Shapes: labels `[...]`, logits `[..., V]`.
    """
    vocab_size = logits.shape[-1]
    target = np.eye(vocab_size)[labels] * (1 - label_smoothing) + label_smoothing / vocab_size
    return -(target * np.log(softmax(logits.astype("float64")))).sum(axis=-1)


def encoder_layer(x, weights, num_heads, mask=None, residual=post_norm):
    """Compute an encoder layer (§3.1)."""
    x = residual(
        x,
        lambda y: multi_head_attention(y, y, weights["self_attention"], num_heads, mask),
        weights["self_attention_norm"],
    )
    return residual(x, lambda y: feed_forward(y, weights["feed_forward"]), weights["feed_forward_norm"])


def decoder_layer(x, memory, weights, num_heads, memory_mask=None, residual=post_norm):
    """Compute a decoder layer (§3.1). In self-attention, position i attends only to positions up to i."""
    past = np.tril(np.ones((1, x.shape[1], x.shape[1]), bool))
    x = residual(
        x,
        lambda y: multi_head_attention(y, y, weights["self_attention"], num_heads, past),
        weights["self_attention_norm"],
    )
    x = residual(
        x,
        lambda y: multi_head_attention(y, memory, weights["cross_attention"], num_heads, memory_mask),
        weights["cross_attention_norm"],
    )
    return residual(x, lambda y: feed_forward(y, weights["feed_forward"]), weights["feed_forward_norm"])


def transformer(source, decoder_input, weights, num_heads, residual=post_norm, window=None):
    """Compute the logits `[batch, n, V]` of a complete Transformer.

    Args:
        source: Token ids `[batch, m]`; 0 is padding.
        decoder_input: Token ids `[batch, n]`.
        weights: "embedding" `[V, d]`, and "encoder" and "decoder" (lists of layers). Optional entries:
            - "positions" `[positions, d]`: scaled position embeddings, which replace the sinusoids.
            - "encoder_norm", "decoder_norm": weights of the normalization at the end of a stack.
            - "word_starts" `[V]`: 1 for each token that starts a word.
            - "word_heads": the number of cross-attention heads that attend only to the current word.
        num_heads: Number of attention heads.
        residual: `post_norm` or `pre_norm`.
        window: Window size of restricted attention in the encoder. None disables the restriction.
    """
    embedding = weights["embedding"]
    d_model = embedding.shape[1]

    def embed(tokens):
        length = tokens.shape[1]
        positions = weights["positions"][:length] if "positions" in weights else sinusoids(range(length), d_model)
        return embedding[tokens] * math.sqrt(d_model) + positions

    mask = (source != 0)[:, None, :]
    memory, encoder_mask = embed(source), mask
    if window:
        # Padding attends to itself, because its window may contain no tokens. Tokens still ignore padding.
        encoder_mask = (mask | np.eye(source.shape[1], dtype=bool)) & neighbourhood(source.shape[1], window)
    for layer in weights["encoder"]:
        memory = encoder_layer(memory, layer, num_heads, encoder_mask, residual)
    if "encoder_norm" in weights:
        memory = layer_norm(memory, weights["encoder_norm"])
    x = embed(decoder_input)
    if "word_starts" in weights:
        own = seen_words(source, decoder_input, weights["word_starts"])
        whole = np.broadcast_to(mask, own.shape)
        mask = np.stack([own if head < weights["word_heads"] else whole for head in range(num_heads)], axis=1)
    for layer in weights["decoder"]:
        x = decoder_layer(x, memory, layer, num_heads, mask, residual)
    if "decoder_norm" in weights:
        x = layer_norm(x, weights["decoder_norm"])
    return x @ embedding.T


def seen_words(source, decoder_input, starts):
    """Return a bool mask `[batch, n, m]` that is true for the source tokens of the current word.

    The current word is the source word that the decoder has reached at each target position. At target positions beyond
    the last source word, the last word stays current. Padding is token 0.
    """
    seen = np.zeros((*decoder_input.shape, source.shape[1]), bool)
    for row, tokens in enumerate(source):
        word, words = 0, []
        for place, token in enumerate(tokens):
            word += int(starts[token]) if place else 0  # the first token always starts a word
            words.append(word if token else None)
        last, turn = max(word for word in words if word is not None), 0
        for place, token in enumerate(decoder_input[row]):
            turn += int(starts[token]) if place else 0
            seen[row, place] = [word == min(turn, last) for word in words]
    return seen


def array(variable):
    return np.asarray(variable.value, dtype="float64")


def attention_weights(layer):
    names = ("query", "key", "value", "output", "score")
    return {name: array(getattr(layer, f"{name}_kernel")) for name in names if hasattr(layer, f"{name}_kernel")}


def feed_forward_weights(layer):
    weights = {name: array(getattr(layer, name)) for name in ("kernel_1", "bias_1", "kernel_2", "bias_2")}
    return {**weights, "activation": layer.activation}


def norm_weights(layer):
    return {"gamma": array(layer.gamma), "beta": array(layer.beta)}


def layer_weights(layer):
    """Return the weights of an encoder or decoder layer as a dictionary."""
    weights = {"feed_forward": feed_forward_weights(layer.feed_forward)}
    for name in ("self_attention", "cross_attention"):
        if hasattr(layer, name):
            weights[name] = attention_weights(getattr(layer, name))
    for name in list(weights):
        weights[f"{name}_norm"] = norm_weights(getattr(layer, f"{name}_residual").normalization)
    return weights


def transformer_weights(model):
    weights = {"embedding": array(model.embedding.table)}
    for name in ("encoder", "decoder"):
        stack = getattr(model, name)
        weights[name] = [layer_weights(layer) for layer in stack.layers]
        if stack.final_norm:
            weights[f"{name}_norm"] = norm_weights(stack.final_norm)
    if hasattr(model.positions, "table"):
        weights["positions"] = array(model.positions.table) * math.sqrt(weights["embedding"].shape[1])
    if hasattr(model, "word_starts"):
        weights["word_starts"], weights["word_heads"] = array(model.word_starts), model.word_heads
    return weights
