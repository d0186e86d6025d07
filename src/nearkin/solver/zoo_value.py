"""What the zoo brought in one run, compared with an empty zoo, as a value and in words."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nearkin.core.text import duration, enumeration, number
from nearkin.solver.sentence import Margin, score_text
from nearkin.tasks.metrics import ACCURACY

if TYPE_CHECKING:
    from nearkin.solver.solution import Solution

RANKING = "ranking"
"""Key of the time of the comparison with the tasks of the zoo."""


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """Test results of two runs of one plan, with the zoo and with an empty one.

    Attributes:
        chosen: title of the model that was selected with the empty zoo.
        metric: its metric on the test set.
        difference: metric with the zoo minus metric with the empty zoo, and the ends of its paired 95 % interval.
        seconds: time of the run with the empty zoo, which is not part of the budget.
    """

    chosen: str
    metric: float
    difference: Margin
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ZooValue:
    """What related tasks brought in one run.

    Attributes:
        with_kin: the contender with the best validation score among those that use weights, cells or the search space
            of a related task; empty without any.
        without_kin: the best among the others; empty without any.
        difference: validation metric of the first minus that of the second, and the ends of its paired 95 % interval;
            None if one of them is missing. The validation set also selected both.
        seconds: time that an empty zoo would have left for other contenders: `ranking`, and by contender.
        measured: the same plan with an empty zoo; None if that was not run.
        not_measured: why a requested measurement was not made, in one line.
    """

    with_kin: str = ""
    without_kin: str = ""
    difference: Margin | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    measured: MeasuredValue | None = None
    not_measured: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def value_sentences(solution: "Solution") -> list[str]:
    """What the zoo brought in this run, in plain words; the measurement first, if there is one."""
    value, metric = solution.zoo_value, solution.quality.name
    titles = {result.name: result.title for result in solution.standings}
    sentences = [_measured(value.measured, solution)] if value.measured is not None else []
    if value.not_measured:
        sentences.append(f"A run with an empty zoo was requested and not made: {value.not_measured}.")
    if not value.with_kin:
        return [*sentences, "The zoo did not help in this run: no contender used a related task.", *_time(solution)]
    if value.difference is None:
        return [*sentences, "Every contender used a related task, so there is nothing to compare them with.",
                *_time(solution)]  # fmt: skip
    return [*sentences, _estimated(value, titles, metric), *_time(solution)]


def _estimated(value: ZooValue, titles: Mapping[str, str], metric: str) -> str:
    assert value.difference is not None
    best, other = (titles.get(name, name) for name in (value.with_kin, value.without_kin))
    text = difference_text(value.difference, metric)
    if value.difference[0] > 0:
        compared = f"“{best}” compared with “{other}”, the best contender without them"
        return f"On the validation set the related tasks brought {text}: {compared}."
    compared = f"compared with “{other}”, the best contender without related tasks, “{best}” brought {text}"
    return f"On the validation set the zoo did not help in this run: {compared}."


def _measured(measured: MeasuredValue, solution: "Solution") -> str:
    quality, took = solution.quality, duration(measured.seconds)
    ours, theirs = (score_text(score, quality.name, quality.count) for score in (quality.metric, measured.metric))
    text = difference_text(measured.difference, quality.name)
    verdict = f"The zoo brought {text}" if measured.difference[0] > 0 else f"The zoo did not help in this run: {text}"
    return (
        f"{verdict}. This was measured on the test set: {ours} with the zoo, and {theirs} by “{measured.chosen}” in "
        f"the same run with an empty zoo. That run took {took} more, which are not in the budget."
    )


def difference_text(difference: Margin, metric: str) -> str:
    """A signed difference with its 95 % interval, and whether it is beyond chance.

    >>> difference_text((0.012, -0.004, 0.028), "accuracy")
    '+1.2 points (95 % interval: −0.4 to +2.8), which may be chance'
    """
    factor, places, unit = (100, 1, " points") if metric == ACCURACY else (1, 3, " of R²")
    gap, low, high = (("+" if value > 0 else "") + number(factor * value, places) for value in difference)
    verdict = "which may be chance" if difference[1] <= 0 <= difference[2] else "which is beyond chance"
    return f"{gap}{unit} (95 % interval: {low} to {high}), {verdict}"


def _time(solution: "Solution") -> list[str]:
    seconds = solution.zoo_value.seconds
    if not seconds:
        return []
    titles = {result.name: result.title for result in solution.standings}
    parts = [f"{titles.get(name, name)} {duration(spent)}" for name, spent in seconds.items()]
    total, whole = duration(sum(seconds.values())), duration(solution.seconds)
    return [f"{total} of {whole} went to related tasks ({enumeration(parts)}); an empty zoo would have left this time "
            f"to the other contenders."]  # fmt: skip
