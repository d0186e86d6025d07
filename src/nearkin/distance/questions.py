"""Questions about fine-tuning, and the measures that answer them.

Which source is best depends on the question: the one with the lowest error after ordinary fine-tuning, or the one whose
loss falls fastest. A question has one measure, or several with weights. Several measures have different units, so they
are combined by ranks among the candidates: a combined value depends on the whole set of candidates, and only the order
has a meaning. `benchmarks/prediction.py` selects the measures and compares them with real fine-tuning.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.distance.registry import measure_named

FEATURE_FALLBACK = "logme"  # measure of features for targets that a question's own do not support


@dataclass(frozen=True)
class Question:
    """A question about fine-tuning, with the measures that answer it.

    Attributes:
        name: in commands.
        summary: the question in one line.
        measures: names of measures with their weights, to compare trained networks of a zoo.
        features: the same for measures that need only features and labels, to compare any networks.
        fallback: measure for targets that none of `measures` supports, such as images.
    """

    name: str
    summary: str
    measures: Mapping[str, float]
    features: Mapping[str, float]
    fallback: str = "short-finetune"

    def supported(self, likelihood: str, features_only: bool = False) -> dict[str, float]:
        """The measures that support targets of a likelihood, with their weights.

        A fallback is used for a likelihood that none of them supports; of measures of features only, this is `logme`.

        >>> sorted(QUESTIONS["final"].supported("dense"))
        ['short-finetune-drawn']
        """
        weights = self.features if features_only else self.measures
        names = {name: w for name, w in weights.items() if likelihood in measure_named(name).targets}
        fallback = FEATURE_FALLBACK if features_only else self.fallback
        if not names and likelihood in measure_named(fallback).targets:
            return {fallback: 1.0}
        require(
            bool(names),
            f"no measure of the question '{self.name}' supports {likelihood} targets; name a measure that does",
            MismatchError,
        )
        return names


QUESTIONS: Mapping[str, Question] = {
    question.name: question
    for question in (
        Question(
            "final",
            "lowest error after ordinary fine-tuning",
            {"hscore": 1.0, "knn": 1.0, "evidence": 1.0},
            {"hscore-adjusted": 0.27, "knn": 0.12, "cka-adjusted": 0.16},
            fallback="short-finetune-drawn",
        ),
        Question(
            "speed",
            "fastest fall of the loss at the start of fine-tuning",
            {"short-finetune": 1.0},
            {"cka-adjusted": 1.0},
        ),
    )
}
"""All questions by name."""

DEFAULT_QUESTION = "final"


def question_named(name: str) -> Question:
    """The question of a name.

    >>> question_named("final").summary
    'lowest error after ordinary fine-tuning'
    """
    if name not in QUESTIONS:
        raise OptionError(f"unknown question {name!r}; choose one of {', '.join(QUESTIONS)}")
    return QUESTIONS[name]


def combined(scores: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> list[float]:
    r"""Combined values of candidates, smaller is better: the weighted mean of their ranks by each measure.

    $v_i = \sum_m w_m r_{mi} / \sum_m w_m$ with the ranks $r_{mi}$ among the candidates, from 0 for the smallest to
    1 for the largest; equal values share their mean rank. The values of a single measure are returned unchanged.

    Args:
        scores: values of the candidates by measure, smaller is nearer, as the measures give them.
        weights: of the measures; `Question.measures` or `Question.features`.

    >>> combined({"logme": [0.3, 0.1, 0.2], "knn": [-0.9, -0.8, -0.5]}, {"logme": 1, "knn": 1})
    [0.5, 0.25, 0.75]
    """
    require(
        set(scores) == set(weights),
        f"got scores of {', '.join(sorted(scores)) or 'no measure'}, expected {', '.join(sorted(weights))}; "
        f"give the scores of the measures that have weights",
        MismatchError,
    )
    lengths = {len(values) for values in scores.values()}
    require(
        len(lengths) == 1,
        f"measures have {sorted(lengths)} scores, expected one for each candidate; leave out the others",
        MismatchError,
    )
    bad = [name for name, values in scores.items() if not all(map(math.isfinite, values))]
    require(not bad, f"a score of {', '.join(bad)} is not a number; leave out this candidate", MismatchError)
    if len(weights) == 1:
        return [float(value) for values in scores.values() for value in values]
    total = sum(weights.values())
    columns = [[weights[name] * rank / total for rank in _ranks(values)] for name, values in scores.items()]
    return [sum(column) for column in zip(*columns, strict=True)]


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0 to 1, ties share their mean rank; 0 for one value."""
    last = max(len(values) - 1, 1)
    return [
        (sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2) / last
        for value in values
    ]
