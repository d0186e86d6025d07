"""The result of a solved task in a few sentences: the test result, the runner-up, and how sure the difference is."""

from collections.abc import Mapping, Sequence

from nearkin.core.text import MISSING, counted, decimals, duration, metric_places, number
from nearkin.solver.quality import Quality
from nearkin.solver.result import Result, ordered
from nearkin.tasks.metrics import ACCURACY, is_in_units

Margin = tuple[float, float, float]
"""A difference of validation scores, and both ends of its 95 % interval."""


_REMEDY = "A limit of processor time (--cpu-budget) gives the same training on a busy machine, and takes longer there."


def score_text(value: float | None, metric: str, count: int) -> str:
    """A score with the digits that `count` samples support: accuracy in percent, other metrics as numbers.

    >>> score_text(0.98765, "accuracy", 360), score_text(0.98765, "r2", 360), score_text(None, "r2", 360)
    ('98.8 %', '0.988', '–')
    """
    if value is not None and is_in_units(metric):
        return number(value, decimals([value]))
    if value is None or metric != ACCURACY:
        return number(value, metric_places(count))
    text = number(100 * value, metric_places(count) - 2)
    return text if text == MISSING else f"{text} %"


def runner_up(chosen: str, standings: Sequence[Result]) -> Result | None:
    """The contender with the best validation score beside the chosen one."""
    return next((contender for contender in ordered(standings) if contender.name != chosen), None)


def margin_text(margin: Margin, metric: str, *, brief: bool = False) -> str:
    """A difference of validation scores, its 95 % interval unless `brief`, and whether it is beyond chance.

    >>> margin_text((0.02, -0.005, 0.045), "accuracy")
    '2.0 points (95 % interval: −0.5 to 4.5), which may be chance'
    """
    verdict = "which may be chance" if margin[1] <= 0 <= margin[2] else "which is beyond chance"
    factor, places, unit = (100, 1, " points") if metric == ACCURACY else (1, 3, "")
    if is_in_units(metric):
        places = decimals(margin)
    gap, low, high = (number(factor * value, places) for value in margin)
    return f"{gap}{unit}{'' if brief else f' (95 % interval: {low} to {high})'}, {verdict}"


def sentence(
    target: str,
    best: Result,
    standings: Sequence[Result],
    quality: Quality,
    margins: Mapping[str, Margin],
    seconds: float,
    finals: Mapping[str, float] | None = None,
    workers: int = 0,
    *,
    summed: bool = False,
) -> str:
    """The chosen model's test result with its interval, size and time, the runner-up's, and whether they differ.

    Args:
        target: name of the task.
        best: the chosen contender.
        standings: all contenders.
        quality: of the chosen model on the test set.
        margins: by name, how far the chosen one is ahead of others on the validation set.
        seconds: of the whole run.
        finals: by name, test score after the final training, see `Solution.finals`.
        workers: number of processes that shared the work, if there were any.
        summed: whether the seconds are those of all workers together.
    """

    def score(value: float | None) -> str:
        text = score_text(value, quality.name, quality.count)
        return text if quality.name == ACCURACY else f"{quality.title} {text}"

    low, high = (score_text(end, quality.name, quality.count) for end in quality.interval)
    result = f"{score(quality.metric)} on {counted(quality.count)} test samples"
    if quality.name == ACCURACY:
        result = f"{score(quality.metric)} of {counted(quality.count)} test samples right"
    sentences = [
        f"{target}: {result} (95 % interval: {low} to {high}) by {_model(best)}.",
        f"It has {counted(best.parameters, 'parameter')} and was found in {duration(seconds)}"
        f"{_shared(workers, summed)}.",
        *_busy(quality, seconds),
    ]
    second = runner_up(best.name, standings)
    if second is not None:
        test = (finals or {}).get(second.name, second.test)
        reached = "" if test is None else f" has {score(test)} on the test set"
        if second.name in margins:
            reached += " and" if reached else ""
            reached += f" is {_position(margins[second.name], quality.name, ' on the validation set')}"
        if reached:
            sentences.append(f"The runner-up, {_model(second)},{reached}.")
    return " ".join([*sentences, *_simple(best, second, standings, quality, margins)])


def _shared(workers: int, summed: bool) -> str:
    """That several processes shared the work; empty if none did.

    >>> _shared(2, True), _shared(2, False), _shared(0, True)
    (' of work, shared by up to 2 workers', ' with up to 2 workers', '')
    """
    if not workers:
        return ""
    return f"{' of work, shared by' if summed else ' with'} up to {counted(workers, 'worker')}"


def _busy(quality: Quality, seconds: float) -> list[str]:
    """That the machine was busy, and what the same command is expected to reach on an idle one."""
    load = quality.load
    if load is None:
        return []
    text = f"The machine was busy: the run had {duration(seconds / load.slowdown)} of processor time. "
    if load.metric is None or load.interval is None:
        return [f"{text}{_REMEDY}"]
    score, low, high = (score_text(value, quality.name, quality.count) for value in (load.metric, *load.interval))
    expected = f"On an idle machine about {score} (95 % interval: {low} to {high}) is expected in the same time."
    return [f"{text}{expected} {_REMEDY}"]


def _position(margin: Margin, metric: str, where: str = "") -> str:
    """How far a contender is behind the selected one, or ahead of it."""
    if margin[0] >= 0:
        return f"behind{where} by {margin_text(margin, metric)}"
    swapped = (-margin[0], -margin[2], -margin[1])
    return f"ahead{where} by {margin_text(swapped, metric)}, and was not selected because its loss is higher"


def _model(result: Result) -> str:
    return f"the network found by {result.title}" if result.kind == "searched" else result.title


def _simple(
    best: Result, second: Result | None, standings: Sequence[Result], quality: Quality, margins: Mapping[str, Margin]
) -> list[str]:
    """How the best simple model compares, which a user would try first."""
    if best.kind == "simple":
        if all(result.kind == "simple" or result.validation is None for result in standings):
            return []
        if all(result.gain <= best.gain for result in standings):
            return ["No network scored better on the validation set, so the simple model is recommended."]
        return ["Networks score better on the validation set only within noise, so the simple model is recommended."]
    simple = next((result for result in standings if result.kind == "simple" and result.name in margins), None)
    if simple is None or simple is second:
        return []
    return [f"The best simple model, {simple.title}, is {_position(margins[simple.name], quality.name)}."]
