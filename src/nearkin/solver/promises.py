"""Promises of the papers, held against what happened in one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearkin.distance.registry import DEFAULT, STRUCTURE
from nearkin.solver.relations import Relations
from nearkin.solver.result import Result

ALIKE = 0.005  # of a metric: differences below are no difference


@dataclass(frozen=True)
class Promise:
    """A claim and what this run says of it.

    Attributes:
        claim: what is promised, in one sentence.
        held: whether it held; None where this run cannot tell.
        evidence: the figures, or why it cannot tell.
    """

    claim: str
    held: bool | None
    evidence: str


def promises(standings: Sequence[Result], relations: Relations, metric: str = "accuracy") -> tuple[Promise, ...]:
    """What the papers promise of near kin, each with the figures of this run; one run proves nothing, it shows."""
    by_name = {one.name: one for one in standings if one.validation is not None}
    return (
        _faster(by_name),
        _against(by_name, "full-search", "A search in the kin's space finds as good a network as one in the whole."),
        _against(by_name, "random-search", "A search finds a better network than random draws from the same space."),
        _smaller(by_name),
        _tuned(by_name),
        _closed(by_name),
        _agreed(relations),
    )


def _faster(found: dict[str, Result]) -> Promise:
    claim = "Beginning with the kin's cells reaches the accuracy of a search from nothing in half of its evaluations."
    kin, full = (found[name].search if name in found else None for name in ("kin-search", "full-search"))
    if kin is None or full is None:
        return Promise(claim, None, _absent("kin-search" if kin is None else "full-search"))
    goal, spent = full["best"]["score"], full["evaluations"]
    reached = next((int(count) for count, score in kin["history"] if score >= goal), None)
    needed = next(int(count) for count, score in full["history"] if score >= goal)
    if reached is None:
        return Promise(claim, False, f"{goal:.4f} was not reached in {kin['evaluations']}, from nothing in {needed}")
    return Promise(
        claim, reached <= needed / 2, f"{goal:.4f} after {reached} cells, from nothing after {needed} of {spent}"
    )


def _against(found: dict[str, Result], other: str, claim: str) -> Promise:
    first = "kin-search" if "kin-search" in found else "full-search"
    if first not in found or other not in found or first == other:
        return Promise(claim, None, _absent("kin-search" if first == other else other))
    ours, theirs = found[first], found[other]
    ahead = _value(ours) - _value(theirs)
    held = ahead > -ALIKE if other == "full-search" else ahead > ALIKE
    return Promise(claim, held, f"{_value(ours):.4f} against {_value(theirs):.4f} on the data of the choice")


def _smaller(found: dict[str, Result]) -> Promise:
    claim = "The searched network is as good as the best hand-made one and smaller."
    searched = _best(found, "searched")
    made = _best(found, "made")
    if searched is None or made is None:
        return Promise(claim, None, _absent("a searched network" if searched is None else "a hand-made network"))
    held = _value(searched) > _value(made) - ALIKE and searched.parameters < made.parameters
    return Promise(claim, held, f"{_sized(searched)} against {_sized(made)} of {made.title}")


def _tuned(found: dict[str, Result]) -> Promise:
    claim = "Fine-tuning the nearest kin does better than the same kind of network trained from nothing."
    tuned = found.get("finetune")
    same = None if tuned is None else found.get(tuned.network.split("?")[0])
    if tuned is None or same is None:
        return Promise(claim, None, _absent("fine-tuning" if tuned is None else "that network from nothing"))
    evidence = f"{_value(tuned):.4f} against {_value(same):.4f} on the data of the choice"
    return Promise(claim, _value(tuned) > _value(same) + ALIKE, evidence)


def _closed(found: dict[str, Result]) -> Promise:
    claim = "The nearest kin's network does as well in closed form as fine-tuned."
    closed, tuned = found.get("transfer"), found.get("finetune")
    if closed is None or tuned is None:
        return Promise(claim, None, _absent("closed-form transfer" if closed is None else "fine-tuning"))
    evidence = f"{_value(closed):.4f} against {_value(tuned):.4f} on the data of the choice"
    return Promise(claim, _value(closed) > _value(tuned) - ALIKE, evidence)


def _agreed(relations: Relations) -> Promise:
    claim = "The Fréchet distance and the predicted cost of fine-tuning name the same nearest kin."
    first = relations.nearest
    if not {STRUCTURE, DEFAULT} <= set(first):
        return Promise(claim, None, "one of the two could not be measured")
    held = first[STRUCTURE] == first[DEFAULT]
    evidence = f"both name {first[DEFAULT]}" if held else f"{first[STRUCTURE]} by one, {first[DEFAULT]} by the other"
    return Promise(claim, held, evidence)


def _best(found: dict[str, Result], kind: str) -> Result | None:
    return max((one for one in found.values() if one.kind == kind), key=_value, default=None)


def _value(one: Result) -> float:
    return one.validation if one.validation is not None else float("-inf")


def _sized(one: Result) -> str:
    return f"{_value(one):.4f} with {one.parameters:,} parameters"


def _absent(what: Any) -> str:
    return f"{what} did not take part"
