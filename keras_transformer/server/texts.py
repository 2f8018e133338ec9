"""Sentences of a request's texts, and the answer put together from their translations."""

import statistics

from keras_transformer.data.language_tags import tag_texts
from keras_transformer.decoding.sentences import join_sentences, split_texts
from keras_transformer.utils.errors import texts_named


def split_into_sentences(texts, language, engine, to):
    """Return the sentences of the texts as nested lists, `[text][line][sentence]`, with language tags if needed.

    A line that is blank or contains only a language tag has no sentences.

    Args:
        texts: The lines of each text, `[text][line]`.
        language: Language of the texts, or None to count each line as one sentence.
        engine: `Engine`.
        to: Target language, or None (see `tag_texts`).

    Raises:
        UserError, TextError: As in `tag_texts`.
    """

    def split(line):
        if not line.strip():
            return []
        if not language:
            return [line]
        return split_texts([line], language, engine.placeholders > 0, engine.source_prefix)[0]

    places = [*_places(texts)]
    with texts_named([place for place, _ in places]):
        tagged = iter(tag_texts([line for _, line in places], to, engine.tags))
    return [[split(next(tagged)) for _ in lines] for lines in texts]


def named_sentences(texts):
    """Return {name for error messages: sentence}, in order. Texts are numbered from 0, lines and sentences from 1.

    Args:
        texts: The result of `split_into_sentences`.
    """
    named = {}
    for place, sentences in _places(texts):
        for n, sentence in enumerate(sentences, start=1):
            named[place if len(sentences) == 1 else f"sentence {n} of {place}"] = sentence
    return named


def _places(texts):
    """Yield the name of each line for error messages, and the line."""
    for i, lines in enumerate(texts):
        for k, line in enumerate(lines, start=1):
            yield f"texts[{i}]" if len(lines) == 1 else f"line {k} of texts[{i}]", line


async def streamed_objects(texts, queued):
    """Yield an object for each sentence as soon as it is translated, and finally the complete answer.

    Args:
        texts: The result of `split_into_sentences`.
        queued: Context manager that yields the futures of the outputs.
    """
    positions = (
        [i, k, n] for i, lines in enumerate(texts) for k, sentences in enumerate(lines) for n in range(len(sentences))
    )
    with queued as futures:
        for position, future in zip(positions, futures):
            yield {"position": position, "translations": [one._asdict() for one in await future]}
        yield complete_answer(texts, [future.result() for future in futures])


def complete_answer(texts, outputs):
    """Return the content of the answer to a translation request.

    Args:
        texts: The result of `split_into_sentences`.
        outputs: The outputs of each sentence.
    """
    outputs = iter(outputs)
    return {"translations": [_joined(lines, outputs) for lines in texts]}


def _joined(lines, outputs):
    """Return the translations of a text, best first, each joined from one translation per sentence.

    Args:
        lines: The sentences of each line of the text.
        outputs: Iterator over the outputs of the sentences of this text and of later texts.
    """
    found = [[next(outputs) for _ in sentences] for sentences in lines]
    joined = []
    for n in range(max((len(several) for line in found for several in line), default=1)):
        # Repeat the last translation of a sentence that has fewer translations than others.
        best = [[several[min(n, len(several) - 1)] for several in line] for line in found]
        scores = [one.score for line in best for one in line] or [0.0]
        score = None if None in scores else statistics.fmean(scores)
        text = "\n".join(join_sentences([one.text for one in line]) for line in best)
        joined.append({"text": text, "score": score})
    return joined
