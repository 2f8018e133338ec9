"""Problem for converted models, whose training text is not available."""

import dataclasses

from keras_transformer.config.registry import register_problem
from keras_transformer.tasks.problem import setting
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError


@register_problem("pretrained_text")
@dataclasses.dataclass(kw_only=True)
class PretrainedText(TranslationProblem):
    """Translation without a corpus, for converted pretrained models."""

    source: str = setting("en", "source language")
    target: str = setting("de", "target language")
    splits = ()

    def pairs(self, split):
        self.check_split(split)

    def check_split(self, split):
        raise UserError(
            f"{self.name} has no {split} split. To score translations, run `score`. To fine-tune the model, run "
            "`train --init_from` with a problem that has a corpus."
        )
