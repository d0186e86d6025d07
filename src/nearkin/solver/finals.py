"""Final models: the selected contenders, trained on all training data."""

from dataclasses import replace
from typing import TypedDict

from nearkin.core.events import Note, Work
from nearkin.core.state import State
from nearkin.nets.solved import Solved
from nearkin.solver.allocation import continued
from nearkin.solver.closed import AGAIN
from nearkin.solver.contenders import Trained, samples_learned, trained_network
from nearkin.solver.contest import ENSEMBLE, Contest
from nearkin.solver.encoder_head import with_linear_head
from nearkin.solver.ensemble import Member, combined

REFIT = 1.6  # time of a fit to all data, relative to the first fit; closed-form transfer uses more samples
LEAST_FINAL = 0.1  # share of the planned final training; with less time left the first training is the final one


class _FinalTime(TypedDict):
    """Seconds of the final training of each network of a contender."""

    seconds: float


def final_model(contest: Contest, name: str) -> Work[tuple[Solved, int]]:
    """The final model of a contender, trained on all training data; with the number of samples used."""
    solved, count = yield from _trained_to_the_end(contest, name)
    encoder = None if name == ENSEMBLE else contest.trained[name][0].contender.encoder
    return solved if encoder is None else with_linear_head(encoder, solved, contest.task), count


def _trained_to_the_end(contest: Contest, name: str) -> Work[tuple[Solved, int]]:
    """The final model; of a contender with the features of a network as inputs, that of the features."""
    if name == ENSEMBLE:
        members, counts = [], []
        for inner, weight in contest.weights.items():
            solved, count = yield from final_model(contest, inner)
            members.append(Member(solved, weight, contest.validation(inner).temperature()))
            counts.append(count)
        return combined(members, contest.validation(ENSEMBLE).scores(), 0.0), min(counts)
    runs = contest.trained[name]
    first = runs[0].contender
    if contest.learned_all(runs):
        return contest.average(runs), len(contest.task.train)
    if first.sized is None or first.sized.recipe.seconds is None:
        return (yield from _fit_again(contest, name, runs[0]))
    needed = continued(first.sized.recipe).seconds or 0.0
    seconds = yield from _final_seconds(contest, name, needed, len(runs))
    if seconds < LEAST_FINAL * needed:
        yield Note(f"no time is left to train {first.title} on the validation data too")
        return contest.average(runs), len(contest.learn.train)
    ended = []
    for number, run in enumerate(runs):
        ended.append((yield from _continued(contest, run, seconds, number)))
    return contest.average(ended), len(contest.task.train)


def has_time_for(contest: Contest, name: str) -> bool:
    """Whether there is time for the final training of a contender that was not selected."""
    runs = contest.trained[name]
    return not contest.plan.focused or contest.learned_all(runs) or contest.left > _refit_seconds(runs[0])


def _refit_seconds(run: Trained) -> float:
    """Expected time to fit a model to all training data."""
    factor = AGAIN**2 if run.contender.kind == "transfer" else REFIT
    return factor * run.solved.trials[0].seconds


def _final_seconds(contest: Contest, name: str, needed: float, networks: int) -> Work[float]:
    """Seconds of each final training: as planned, or what is left; decided once."""

    def work(_: State | None) -> Work[State]:
        yield from ()
        return State({}, {"seconds": max(0.0, min(needed, contest.left / networks))})

    inputs = {"data": contest.learn.fingerprint(), "needed": needed, "networks": networks}
    done = yield from contest.stages.stage("final training", inputs, work, key=f"final-pace-{name}")
    return done.read(_FinalTime)["seconds"]


def _continued(contest: Contest, run: Trained, seconds: float, number: int) -> Work[Trained]:
    """Continue the first training of a network on all training data."""
    old = run.contender
    assert old.sized is not None
    recipe = replace(continued(old.sized.recipe), seconds=seconds)
    contender = replace(
        old, task=old.whole_of(contest.task), start=run.solved,
        sized=replace(old.sized, recipe=recipe), title=f"{old.title}, final training",
    )  # fmt: skip
    state = yield from contest.train(contender, f"final: {contest.trained[old.name][0].contender.title}", number)
    solved, settings = trained_network(state, contender)
    return replace(run, solved=solved, settings=settings)


def _fit_again(contest: Contest, name: str, run: Trained) -> Work[tuple[Solved, int]]:
    """Train a model again on all training data with the same settings, if the time allows for it."""
    old, whole = run.contender, run.contender.whole_of(contest.task)
    if not has_time_for(contest, name):
        yield Note(f"no time is left to fit {old.title} to the validation data too")
        return run.solved, samples_learned(run.settings, old.task)
    extra = old.extra.get("settings", {})
    result = next(result for result in contest.results if result.name == name)
    chosen = {key: value for key, value in result.settings.items() if key not in extra}
    fixed = chosen if old.sized is None else None
    contender = replace(old, task=whole, fixed=fixed, title=f"{old.title}, final training")
    state = yield from contest.train(contender, f"final: {old.title}")
    solved, settings = trained_network(state, contender)
    return solved, samples_learned(settings, whole)
