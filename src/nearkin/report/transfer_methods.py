"""Sections of a transfer's report: all methods compared, and the calibration of their probabilities."""

from collections.abc import Sequence
from functools import partial

from nearkin.core.text import counted, duration, metric_places, number, percent, plain
from nearkin.report.html import HtmlTable, figure
from nearkin.report.reliability import BIN_HEADS, bin_rows, bins_text
from nearkin.report.sections import Section
from nearkin.report.transfer_pictures import calibration_picture, methods_picture
from nearkin.tasks.metrics import metric_title
from nearkin.transfer.outcome import TransferScores
from nearkin.zoo.transfer import Transfer

_SHARES = (
    "Test samples grouped by the probability that a method gave to its answer. On the dashed line, it is right as "
    "often as it claims; below, its probabilities are too high. Larger points stand for more samples, vertical lines "
    "are 95 % intervals."
)
_INTERVALS = (
    "The share of test values inside central intervals of 5 %, 10 % and so on. On the dashed line, intervals contain "
    "as many values as they should; below, they are too narrow."
)


def transfer_sentence(transfer: Transfer) -> str:
    """The result: the closed form's score, and the best other method's."""
    metric, places = metric_of(transfer), metric_places(transfer.num_test)
    text = (
        f"From {learned(transfer)} the network of “{plain(transfer.source)}” reaches {metric} "
        f"{number(transfer.metric, places)} on the test set of “{plain(transfer.target)}” without training, in "
        f"{duration(transfer.seconds)}"
    )
    best = max(transfer.baselines, key=lambda outcome: outcome.metric, default=None)
    if best is None:
        return f"{text}; {baseline_name(transfer)} has {number(transfer.guess, places)}."
    gap = transfer.metric - best.metric
    order = "more than" if gap > 0 else "less than" if gap < 0 else "as much as"
    return f"{text}: {order} the best other method, {plain(best.name)}, with {number(best.metric, places)}."


def baseline_name(transfer: Transfer) -> str:
    """The constant answer that results are compared with."""
    return "the majority class" if of_classes(transfer) else "the mean value"


def of_classes(transfer: Transfer) -> bool:
    """Whether the target has classes; otherwise it has values."""
    return transfer.metric_name == "accuracy"


def metric_of(transfer: Transfer) -> str:
    """Title of the metric."""
    return plain(metric_title(transfer.metric_name))


def learned(transfer: Transfer) -> str:
    """The number of labels or samples that were learned from."""
    if not of_classes(transfer):
        return f"{counted(transfer.num_train)} samples"
    each = f", {transfer.shots} for each class," if transfer.shots else ""
    return f"{counted(transfer.num_train)} labels{each}"


def methods_section(transfer: Transfer) -> Section:
    """All methods as a table and a picture."""
    outcomes, metric, places = (
        (transfer.outcome, *transfer.baselines),
        metric_of(transfer),
        metric_places(transfer.num_test),
    )
    rows = [
        (plain(outcome.name), number(outcome.metric, places), *map(number, (outcome.nll, outcome.ece)),
         duration(outcome.seconds))
        for outcome in outcomes
    ]  # fmt: skip
    heads = ("Method", metric, "nll", "ece", "Time")
    table = HtmlTable("All methods on the test set", heads, rows, frozenset({1, 2, 3, 4}), 0)
    caption = f"The dashed line is the {metric} of {baseline_name(transfer)}, the best answer that ignores the input."
    if of_classes(transfer):
        caption = f"Lines are 95 % intervals on {counted(transfer.num_test)} test samples. {caption}"
    return {
        "title": "Comparison with other methods" if transfer.baselines else "Result",
        "text": _ranks(transfer),
        "table": table,
        "figure": figure(
            partial(methods_picture, outcomes, metric, transfer.num_test, (transfer.guess, baseline_name(transfer))),
            "nk-methods", "Methods", caption, table,
        ),
    }  # fmt: skip


def _ranks(transfer: Transfer) -> list[str]:
    """The rank of the closed form by each figure."""
    others = transfer.baselines
    if not others:
        return ["No other method was measured for comparison."]
    ranks = (
        (metric_of(transfer), sum(other.metric > transfer.metric for other in others)),
        ("nll", sum(other.nll < transfer.nll for other in others)),
        ("ece", sum(other.ece < transfer.ece for other in others)),
    )
    text = ", ".join(f"{1 + ahead} by {name}" for name, ahead in ranks)
    return [
        f"All {len(others) + 1} methods learned from the same {learned(transfer).rstrip(',')}.",
        f"Among them the closed form has rank {text}. nll is the mean loss of the probabilities, ece their calibration "
        f"error; small values are good.",
    ]


def certainty_section(transfer: Transfer) -> Section:
    """Calibration, a panel for each method."""
    outcomes = tuple(outcome for outcome in (transfer.outcome, *transfer.baselines) if outcome.bins)
    shares = of_classes(transfer)
    heads = ("Method", *(BIN_HEADS if shares else ("Level of the interval", "Share inside")))
    rows = [
        (plain(outcome.name), *row)
        for outcome in outcomes
        for row in (bin_rows(outcome.bins) if shares else _levels(outcome))
    ]
    table = HtmlTable("Calibration of every method", heads, rows, frozenset(range(1, len(heads))))
    text = bins_text(transfer.outcome.bins, transfer.ece) if shares else interval_text(transfer.outcome)
    return {
        "title": "Are its probabilities right?" if shares else "Are its intervals right?",
        "text": [text],
        "figure": figure(
            partial(calibration_picture, outcomes, shares),
            "nk-calibration", "Calibration", _SHARES if shares else _INTERVALS, table,
        ),
    }  # fmt: skip


def _levels(outcome: TransferScores) -> Sequence[tuple[str, ...]]:
    return [(percent(level), percent(share)) for level, share, _ in outcome.bins]


def interval_text(outcome: TransferScores) -> str:
    """Whether central intervals are too narrow or too wide.

    >>> interval_text(TransferScores("it", 0.5, 1.0, 0.2, 0.1, ((0.5, 0.3, 9), (0.9, 0.7, 9))))[:76]
    'Its intervals are too narrow: those of 90 % contain 70 % of the test values.'
    """
    excess = sum(share - level for level, share, _ in outcome.bins) / len(outcome.bins)
    verdict = "about right" if outcome.ece < 0.05 else "too wide" if excess > 0 else "too narrow"
    level, share, _ = min(outcome.bins, key=lambda row: abs(row[0] - 0.9))
    return (
        f"Its intervals are {verdict}: those of {percent(level)} contain {percent(share)} of the test values. On "
        f"average over all levels, the share is off by {number(outcome.ece)}."
    )
