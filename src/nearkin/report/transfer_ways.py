"""Sections of a transfer's report: every way beside the closed form, and whether their certainty is earned."""

from collections.abc import Sequence
from functools import partial

from nearkin.core.text import counted, duration, metric_places, number, percent, plain
from nearkin.report.html import Table, figure
from nearkin.report.reliability import BIN_HEADS, bin_rows, certainty_words
from nearkin.report.sections import Section
from nearkin.report.transfer_pictures import certainty_picture, ways_picture
from nearkin.tasks.metrics import metric_title
from nearkin.transfer.outcome import TransferScores
from nearkin.zoo.transfer import Transfer

_SHARES = (
    "Test samples sorted by how sure a way was. On the dashed line it is right as often as it says; below, it is too "
    "sure. Larger points stand for more samples, whiskers are 95 % intervals."
)
_INTERVALS = (
    "The share of test values inside central intervals of 5 %, 10 % and so on. On the dashed line intervals hold as "
    "many as they should; below, they are too narrow."
)


def sentence(found: Transfer) -> str:
    """The result in plain words."""
    what, places = metric_of(found), metric_places(found.num_test)
    said = (
        f"From {learned(found)} the network of {plain(found.source)} reaches {what} {number(found.metric, places)} on "
        f"{plain(found.target)} without training, in {duration(found.seconds)}"
    )
    best = max(found.baselines, key=lambda one: one.metric, default=None)
    if best is None:
        return f"{said}; a blind guess has {number(found.guess, places)}."
    order = "more than" if found.metric > best.metric else "as much as" if found.metric == best.metric else "less than"
    return f"{said}: {order} the best of the usual ways, {plain(best.name)} with {number(best.metric, places)}."


def of_classes(found: Transfer) -> bool:
    """Whether the target has classes; else it has values."""
    return found.metric_name == "accuracy"


def metric_of(found: Transfer) -> str:
    """As people write it."""
    return plain(metric_title(found.metric_name))


def learned(found: Transfer) -> str:
    """What was learned from."""
    if not of_classes(found):
        return f"{counted(found.num_train)} samples"
    each = f", {found.shots} a class," if found.shots else ""
    return f"{counted(found.num_train)} labels{each}"


def ways_section(found: Transfer) -> Section:
    """All ways, by picture and table."""
    ways, metric, places = (found.outcome, *found.baselines), metric_of(found), metric_places(found.num_test)
    rows = [
        (plain(one.name), number(one.metric, places), number(one.nll), number(one.ece), duration(one.seconds))
        for one in ways
    ]
    table = Table("Every way on the test part", ("Way", metric, "nll", "ece", "Time"), rows, frozenset({1, 2, 3, 4}), 0)
    caption = f"The dashed line is the {metric} of the best answer that ignores the input."
    if of_classes(found):
        caption = f"Whiskers are 95 % intervals of {counted(found.num_test)} test samples. {caption}"
    return {
        "title": "Beside the usual ways" if found.baselines else "What it came to",
        "words": _places(found),
        "table": table,
        "figure": figure(
            partial(ways_picture, ways, metric, found.num_test, found.guess),
            "nk-ways", "Ways", caption, table,
        ),
    }  # fmt: skip


def _places(found: Transfer) -> list[str]:
    """Which place the closed form has by each figure."""
    others = found.baselines
    if not others:
        return ["No other way was measured beside it."]
    ranks = (
        (metric_of(found), sum(one.metric > found.metric for one in others)),
        ("nll", sum(one.nll < found.nll for one in others)),
        ("ece", sum(one.ece < found.ece for one in others)),
    )
    told = ", ".join(f"{1 + ahead} by {name}" for name, ahead in ranks)
    return [
        f"All {len(others) + 1} ways learned from the same {learned(found).rstrip(',')}.",
        f"Among them the closed form has place {told}; small nll and ece are good.",
    ]


def certainty_section(found: Transfer) -> Section:
    """Certainty against truth, a panel for each way."""
    ways, shares = tuple(one for one in (found.outcome, *found.baselines) if one.bins), of_classes(found)
    heads: tuple[str, ...] = ("Way", "Level of the interval", "Share inside")
    if shares:
        heads = ("Way", *BIN_HEADS)
    rows = [(plain(one.name), *row) for one in ways for row in (bin_rows(one.bins) if shares else _levels(one))]
    table = Table("Certainty and truth of every way", heads, rows, frozenset(range(1, len(heads))))
    words = certainty_words(found.outcome.bins, found.ece) if shares else interval_words(found.outcome)
    return {
        "title": "Is it right as often as it is sure?" if shares else "Do its intervals hold what they promise?",
        "words": [words],
        "figure": figure(
            partial(certainty_picture, ways, shares),
            "nk-certainty", "Certainty", _SHARES if shares else _INTERVALS, table,
        ),
    }  # fmt: skip


def _levels(one: TransferScores) -> Sequence[tuple[str, ...]]:
    return [(percent(level), percent(share)) for level, share, _ in one.bins]


def interval_words(one: TransferScores) -> str:
    """Whether central intervals are too narrow or too wide.

    >>> interval_words(TransferScores("it", 0.5, 1.0, 0.2, 0.1, ((0.5, 0.3, 9), (0.9, 0.7, 9))))[:74]
    'Its intervals are too narrow: those of 90 % hold 70 % of the test values; '
    """
    lean = sum(share - level for level, share, _ in one.bins) / len(one.bins)
    judged = "about right" if one.ece < 0.05 else "too wide" if lean > 0 else "too narrow"
    level, share, _ = min(one.bins, key=lambda found: abs(found[0] - 0.9))
    return (
        f"Its intervals are {judged}: those of {percent(level)} hold {percent(share)} of the test values; on the mean "
        f"over all levels the share is off by {number(one.ece)}."
    )
