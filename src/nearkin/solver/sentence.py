"""The answer in one sentence."""

from collections.abc import Mapping, Sequence

from nearkin.solver.quality import Quality
from nearkin.solver.result import Result


def sentence(
    target: str,
    best: Result,
    standings: Sequence[Result],
    quality: Quality,
    margins: Mapping[str, tuple[float, float, float]],
    seconds: float,
) -> str:
    """What was found, how good it is, how large, how long it took, and whether something simpler would do."""
    low, high = quality.interval
    if quality.name == "accuracy":
        worth = f"{quality.metric:.1%} of {quality.count:,} unseen samples right ({low:.1%} to {high:.1%})"
    else:
        worth = f"{quality.title} {quality.metric:.3f} on {quality.count:,} unseen samples ({low:.3f} to {high:.3f})"
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    size = f"{best.parameters:,} parameters, found in {took}"
    return f"{target}: {worth} by {_who(best)}, {size}{_rival(best, standings, margins)}."


def _who(best: Result) -> str:
    """The model in words."""
    return f"the network from a {best.title}" if best.kind == "searched" else best.title


def _rival(best: Result, standings: Sequence[Result], margins: Mapping[str, tuple[float, float, float]]) -> str:
    """How the best simple model compares, which a user would have tried first."""
    if best.kind == "simple":
        tried = any(one.kind != "simple" and one.validation is not None for one in standings)
        return "; no network did better on the data of the choice, so the simple model is recommended" if tried else ""
    simple = next((one for one in standings if one.kind == "simple" and one.name in margins), None)
    if simple is None:
        return ""
    ahead, low, _ = margins[simple.name]
    sure = "" if low > 0 else ", which may be chance"
    return (
        f"; the best simple model, {simple.title}, was {100 * ahead:.1f} points behind on the data of the choice{sure}"
    )
