"""Separate scores for the parts of a problem, such as the directions of a multilingual corpus."""

import dataclasses
import statistics

from keras_transformer.metrics.bleu import Score
from keras_transformer.utils.errors import UserError, unknown


def in_directions(run, directions):
    """Return the problem of a multilingual run, with the given directions between the run's languages.

    Args:
        run: `Run`.
        directions: Directions such as "de-fr,fr-de". None returns the problem of the run, multilingual or not.

    Raises:
        UserError: The problem of the run is not multilingual, or a direction contains a language that the run was not
            trained on.
    """
    problem = run.problem
    if directions is None:
        return problem
    if not problem.parts:
        raise UserError(f"--directions needs a run of multilingual_text, got a run of {problem.name}. Omit the flag.")
    changed = dataclasses.replace(problem, directions=directions)
    known = {language for part in problem.parts.values() for language in (part.source, part.target)}
    for part in changed.parts.values():
        if part.source not in known:
            raise unknown("source language", part.source, known)
        if part.target not in run.tokenizer.languages:
            raise unknown("target language", part.target, run.tokenizer.languages)
    return changed


def score_parts(problem, names, hypotheses, references, method="score"):
    """Return the overall scores of the outputs, and the scores of each part.

    Args:
        problem: `Problem`.
        names: Result of `Problem.part_names`: the name of each example's part, or None if the split has no parts.
        hypotheses, references: Lists of texts.
        method: Method of the problem that computes the scores, "score" or "all_scores".

    Returns:
        A list of `Score`, and {name of a part: its list of `Score`}. With parts, the overall scores are
        means over the parts. Without parts, the dictionary is empty.
    """
    if names is None:
        return getattr(problem, method)(hypotheses, references), {}
    by_part = {}
    for name in dict.fromkeys(names):
        rows = [row for row, one in enumerate(names) if one == name]
        sides = ([side[row] for row in rows] for side in (hypotheses, references))
        by_part[name] = getattr(problem.parts[name], method)(*sides)
    return [_mean(scores, by_part) for scores in zip(*by_part.values())], by_part


def _mean(scores, names):
    if len(scores) == 1:
        return scores[0]
    signatures = " and ".join(dict.fromkeys(score.signature for score in scores))
    value = statistics.fmean(score.value for score in scores)
    return Score(scores[0].name, value, f"mean of {', '.join(names)}: {signatures}")
