"""PyTorch engine: post-norm nn.Transformer layers with a shared embedding, and no final norm in either stack.

The attention projections of the paper have no biases, so the engine fixes those of PyTorch's projections at 0. As in
the paper, dropout applies to embeddings and sublayer outputs, but not to attention weights or activations. With
bfloat16, the engine uses autocast. The optimizer is PyTorch's fused Adam.
"""

import contextlib
import itertools
import math

import protocol
import torch
from torch import nn

MAX_LENGTH = 512


class Transformer(nn.Module):
    """Transformer of the paper, whose `forward` returns the label-smoothed loss."""

    def __init__(self, vocab_size, hparams):
        super().__init__()
        h = hparams
        width, heads, inner = h["d_model"], h["num_heads"], h["d_ff"]
        self.embedding = nn.Embedding(vocab_size, width)
        self.register_buffer("positions", torch.from_numpy(protocol.sinusoids(MAX_LENGTH, width)))
        self.dropout = nn.Dropout(h["dropout"])
        options = dict(dim_feedforward=inner, dropout=h["dropout"], layer_norm_eps=1e-6, batch_first=True)
        encoder = nn.TransformerEncoderLayer(width, heads, **options)
        decoder = nn.TransformerDecoderLayer(width, heads, **options)
        self.encoder = nn.TransformerEncoder(encoder, h["num_layers"], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, h["num_layers"])
        for layer in [*self.encoder.layers, *self.decoder.layers]:
            layer.dropout.p = 0.0
            layer.self_attn.dropout = 0.0
        for layer in self.decoder.layers:
            layer.multihead_attn.dropout = 0.0
        self.smoothing = h["label_smoothing"]

    def embed(self, ids):
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source, inputs, labels):
        padding = source == 0
        memory = self.encoder(self.embed(source), src_key_padding_mask=padding)
        length = inputs.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = self.decoder(
            self.embed(inputs), memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding
        )
        logits = states @ self.embedding.weight.T
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=self.smoothing
        )

    @torch.no_grad()
    def assign(self, weights):
        """Copy weights of a `keras_transformer` model, {name: array}, into this model."""

        def tensor(name):
            return torch.from_numpy(weights[name])

        def assign_attention(attention, path):
            kernels = [tensor(f"{path}/{name}").T for name in ("query", "key", "value")]
            attention.in_proj_weight.copy_(torch.cat(kernels))
            attention.in_proj_bias.zero_().requires_grad_(False)
            attention.out_proj.weight.copy_(tensor(f"{path}/output").T)
            attention.out_proj.bias.zero_().requires_grad_(False)

        self.embedding.weight.copy_(tensor("embedding/table"))
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for number, layer in enumerate(stack.layers, 1):
                path = f"{name}/layer_{number}"
                assign_attention(layer.self_attn, f"{path}/self_attention")
                norms = {"self_attention": layer.norm1, "feed_forward": layer.norm2}
                if name == "decoder":
                    assign_attention(layer.multihead_attn, f"{path}/cross_attention")
                    norms = {"self_attention": layer.norm1, "cross_attention": layer.norm2, "feed_forward": layer.norm3}
                for part, norm in norms.items():
                    norm.weight.copy_(tensor(f"{path}/{part}_residual/normalization/gamma"))
                    norm.bias.copy_(tensor(f"{path}/{part}_residual/normalization/beta"))
                for count, dense in ((1, layer.linear1), (2, layer.linear2)):
                    dense.weight.copy_(tensor(f"{path}/feed_forward/kernel_{count}").T)
                    dense.bias.copy_(tensor(f"{path}/feed_forward/bias_{count}"))


def train(job):
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    vocab_size, h, weights = protocol.read_model(job["model"])
    model = Transformer(vocab_size, h)
    model.assign(weights)
    optimizer = torch.optim.Adam(
        filter(lambda parameter: parameter.requires_grad, model.parameters()),
        lr=1.0,  # `LambdaLR` multiplies this value by the learning rate of each step
        betas=(h["adam_beta_1"], h["adam_beta_2"]),
        eps=h["adam_epsilon"],
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: protocol.learning_rate(h, step + 1))
    loss_of = torch.compile(model) if job["mode"] == "compile" else model
    batches = itertools.cycle(
        [[torch.from_numpy(array).long() for array in batch] for batch in protocol.read_batches(job["batches"])]
    )

    def precision():
        if job["precision"] == "bfloat16":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def updates(count):
        for batch in itertools.islice(batches, count):
            with precision():
                loss = loss_of(*batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        return loss.item()

    return protocol.training(job, updates)


if __name__ == "__main__":
    protocol.serve(train=train)
