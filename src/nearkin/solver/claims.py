"""Claims of the papers, checked with the results of one run."""

from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.distance.registry import DEFAULT, STRUCTURE
from nearkin.solver.relations import Relations
from nearkin.solver.result import Result

ALIKE = 0.005  # smaller differences of a metric count as equal


@dataclass(frozen=True)
class ClaimCheck:
    """A claim, and whether it held in this run.

    Attributes:
        claim: the claim in one sentence.
        held: whether it held; None if this run cannot decide.
        evidence: the figures, or why it cannot decide.
    """

    claim: str
    held: bool | None
    evidence: str


def check_claims(results: Sequence[Result], relations: Relations, metric: str = "accuracy") -> tuple[ClaimCheck, ...]:
    """Check the papers' claims about related tasks with this run; one run is an example, not a proof."""
    by_name = {result.name: result for result in results if result.validation is not None}
    return (
        _faster(by_name),
        _against(
            by_name,
            "full-search",
            "A search in a related task's space is as good as one in the full space.",
        ),
        _against(by_name, "random-search", "A search is better than random search in the same space."),
        _smaller(by_name),
        _tuned(by_name),
        _closed(by_name),
        _forecast(by_name),
        _agreed(relations),
    )


def _faster(results: dict[str, Result]) -> ClaimCheck:
    claim = "Starting from a related task's cells needs half of the evaluations of a search from scratch."
    kin, full = (results[name].search if name in results else None for name in ("kin-search", "full-search"))
    if kin is None or full is None:
        return ClaimCheck(claim, None, _absent("kin-search" if kin is None else "full-search"))
    goal, total = full["best"]["score"], full["evaluations"]
    reached = next((int(count) for count, score in kin["history"] if score >= goal), None)
    needed = next(int(count) for count, score in full["history"] if score >= goal)
    if reached is None:
        return ClaimCheck(
            claim, False, f"{goal:.4f} was not reached in {kin['evaluations']} evaluations, from scratch in {needed}"
        )
    return ClaimCheck(
        claim, reached <= needed / 2, f"{goal:.4f} after {reached} cells, from scratch after {needed} of {total}"
    )


def _against(results: dict[str, Result], other: str, claim: str) -> ClaimCheck:
    first = "kin-search" if "kin-search" in results else "full-search"
    if first not in results or other not in results or first == other:
        return ClaimCheck(claim, None, _absent("kin-search" if first == other else other))
    ours, theirs = results[first], results[other]
    ahead = ours.gain - theirs.gain
    held = ahead > -ALIKE if other == "full-search" else ahead > ALIKE
    return ClaimCheck(claim, held, f"{_value(ours):.4f} against {_value(theirs):.4f} on the validation set")


def _smaller(results: dict[str, Result]) -> ClaimCheck:
    claim = "The searched network is as good as the best hand-made network, and smaller."
    searched = _best(results, "searched")
    hand_made = _best(results, "made")
    if searched is None or hand_made is None:
        return ClaimCheck(claim, None, _absent("a searched network" if searched is None else "a hand-made network"))
    held = searched.gain > hand_made.gain - ALIKE and searched.parameters < hand_made.parameters
    return ClaimCheck(claim, held, f"{_sized(searched)}, {hand_made.title} {_sized(hand_made)}")


def _tuned(results: dict[str, Result]) -> ClaimCheck:
    claim = "Fine-tuning the network of the nearest task is better than training the same network from scratch."
    tuned = results.get("finetune")
    same = None if tuned is None else results.get(tuned.network.split("?")[0])
    if tuned is None or same is None:
        return ClaimCheck(claim, None, _absent("fine-tuning" if tuned is None else "that network from scratch"))
    evidence = f"{_value(tuned):.4f} against {_value(same):.4f} on the validation set"
    return ClaimCheck(claim, tuned.gain > same.gain + ALIKE, evidence)


def _closed(results: dict[str, Result]) -> ClaimCheck:
    claim = "Closed-form transfer of the nearest task's network is as good as fine-tuning it."
    closed, tuned = results.get("transfer"), results.get("finetune")
    if closed is None or tuned is None:
        return ClaimCheck(claim, None, _absent("closed-form transfer" if closed is None else "fine-tuning"))
    evidence = f"{_value(closed):.4f} against {_value(tuned):.4f} on the validation set"
    return ClaimCheck(claim, closed.gain > tuned.gain - ALIKE, evidence)


def _forecast(results: dict[str, Result]) -> ClaimCheck:
    claim = "The forecast holds: fine-tuning reaches a fifth of a constant answer's loss within its 80 % interval."
    forecast = next((result.forecast for result in results.values() if result.forecast), None)
    if forecast is None:
        return ClaimCheck(claim, None, "fine-tuning did not take part, or was not forecast")
    low, high = forecast["interval"]
    ends = f"{low:,.0f} to {high:,.0f} steps" if high is not None else f"at least {low:,.0f} steps"
    measured = forecast["measured"]
    reached = (
        f"measured {measured['steps']:,.0f}" if measured["steps"] else f"not reached in {measured['steps_done']:,}"
    )
    return ClaimCheck(claim, bool(forecast["measured"]["in_interval"]), f"forecast {ends}, {reached}")


def _agreed(relations: Relations) -> ClaimCheck:
    claim = "The Fréchet distance and short fine-tuning name the same nearest task."
    first = relations.nearest
    if not {STRUCTURE, DEFAULT} <= set(first):
        return ClaimCheck(claim, None, "one of the two could not be measured")
    held = first[STRUCTURE] == first[DEFAULT]
    evidence = f"both name '{first[DEFAULT]}'" if held else f"'{first[STRUCTURE]}' and '{first[DEFAULT]}'"
    return ClaimCheck(claim, held, evidence)


def _best(results: dict[str, Result], kind: str) -> Result | None:
    return max(
        (result for result in results.values() if result.kind == kind), key=lambda result: result.gain, default=None
    )


def _value(result: Result) -> float:
    return result.validation if result.validation is not None else float("-inf")


def _sized(result: Result) -> str:
    return f"{_value(result):.4f} with {result.parameters:,} parameters"


def _absent(contender: str) -> str:
    return f"{contender} did not take part"
