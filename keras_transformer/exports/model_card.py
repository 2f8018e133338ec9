"""Model card of an export, the README.md that the Hugging Face Hub displays."""

from keras_transformer.data.language_tags import language_tag
from keras_transformer.runs.summary import lines_by_step

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

A Transformer ("Attention Is All You Need") that translates {directions}. It was
trained with `keras_transformer` and has the format of `MarianMTModel`.

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
    validations = lines_by_step(run.metrics())["validation"]
    scores = [validations[step] for step in description["steps"] if "signatures" in validations.get(step, {})]
    rows = {
        "problem": problem.name,
        "training pairs": f"{corpus['splits']['train']['pairs']:,}" if corpus else "",
        "corpus files (SHA-256)": ", ".join(
            f"{path.rpartition('/')[2]} `{known['sha256'][:12]}…`"
            for path, known in corpus.items()
            if "sha256" in known
        ),
        "parameters": f"{manifest['parameters']['total']:,}",
        "layers, d_model, d_ff, heads": f"{hparams.num_layers}, {hparams.d_model}, {hparams.d_ff}, {hparams.num_heads}",
        "updates": ", ".join(map(str, description["steps"])),
        "validation scores": ", ".join(
            f"{name} {row[name]:.2f} (`{signature}`)" for row in scores for name, signature in row["signatures"].items()
        ),
        "training command": f"`python -m keras_transformer.{' '.join(manifest['command']).replace('.py', '', 1)}`",
    }
    *others, last = [f"from `{part.input_language}` to `{part.output_language}`" for part in parts]
    directions = " and ".join(filter(None, (", ".join(others), last)))
    languages = dict.fromkeys(language for part in parts for language in (part.input_language, part.output_language))
    tags = [language_tag(language) for language in run.tokenizer.languages]
    listed = ", ".join(f"`{tag}`" for tag in tags)
    return CARD.format(
        directions=directions,
        languages="\n".join(f"- {language}" for language in languages), name=description["run"],
        tag=f"{tags[0]} " if tags else "",
        tags=f" It must begin with the tag of its target language: {listed}." if tags else "",
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items() if value),
    )  # fmt: skip
