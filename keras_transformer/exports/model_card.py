"""Model card of an export, the README.md that the Hugging Face Hub displays."""

import shlex

from keras_transformer.data.language_tags import needs_tags
from keras_transformer.runs.totals import lines_by_step

CARD = """---
library_name: transformers
pipeline_tag: translation
language:
{languages}
tags:
- translation
- marian
---

# {name}

A Transformer ("Attention Is All You Need") that translates {directions}. The
files have the format of `MarianMTModel`. `keras_transformer` exported them.

```python
from transformers import MarianMTModel, MarianTokenizer

model = MarianMTModel.from_pretrained("{name}")
tokenizer = MarianTokenizer.from_pretrained("{name}")
batch = tokenizer(["{tag}A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

Each input text must be one sentence.{tags}

| | |
|---|---|
{rows}

License: not stated. Add `license:` above before you publish the model. The license depends on the training data.

Intended use: translation of sentences like those in the training data. For other text, the output can be wrong or
fluent nonsense. Check outputs before you rely on them.
"""


def model_card(run, description):
    """Return the text of a model card.

    Args:
        run: `Run`.
        description: Contents of `export.json` (see `description.describe`).
    """
    problem, manifest, hparams = run.problem, run.manifest(), run.hparams
    parts = [*problem.parts.values()] or [problem]
    corpus = manifest["corpus"]  # empty for models from `convert`
    command, steps = manifest["command"], description["steps"]
    # Training validates neither the averages of several checkpoints nor the moving average.
    validated = len(steps) == 1 and description["checkpoint"] != "ema"
    validation = lines_by_step(run.metrics())["validation"].get(steps[0], {}) if validated else {}
    depths = dict.fromkeys([hparams.num_layers, hparams.decoder_depth])  # the decoder may have another depth
    layers = " + ".join(map(str, depths))
    rows = {
        "problem": problem.name,
        "training pairs": f"{corpus['splits']['train']['pairs']:,}" if corpus else "",
        "corpus files (SHA-256)": ", ".join(
            f"{path.rpartition('/')[2]} `{known['sha256'][:12]}…`"
            for path, known in corpus.items()
            if "sha256" in known
        ),
        "parameters": f"{manifest['parameters']['total']:,}",
        "layers, d_model, d_ff, heads": f"{layers}, {hparams.d_model}, {hparams.d_ff}, {hparams.num_heads}",
        "updates": ", ".join(map(str, steps)),
        "validation scores": ", ".join(
            f"{name} {validation[name]:.2f} (`{signature}`)"
            for name, signature in validation.get("signatures", {}).items()
        ),
        "training command": (
            f"`python -m keras_transformer.train {shlex.join(command[1:])}`" if command[0] == "train.py" else ""
        ),
    }
    *others, last = [f"from `{part.input_language}` to `{part.output_language}`" for part in parts]
    directions = " and ".join(filter(None, (", ".join(others), last)))
    languages = dict.fromkeys(language for part in parts for language in (part.input_language, part.output_language))
    tags = [*run.tokenizer.tags.values()] if needs_tags(run.tokenizer.tags) else []
    listed = ", ".join(f"`{tag}`" for tag in tags)
    return CARD.format(
        directions=directions,
        languages="\n".join(f'- "{language}"' for language in languages), name=description["run"],
        tag=f"{tags[0]} " if tags else "",
        tags=f" It must begin with the tag of its target language: {listed}." if tags else "",
        rows="\n".join("| {} | {} |".format(name, value.replace("|", "\\|")) for name, value in rows.items() if value),
    )  # fmt: skip
