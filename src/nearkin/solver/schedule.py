"""Order and time of the contenders: equal shares, or the ones that the data favours first (`solver.allocation`)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from nearkin.core.events import Note, Work
from nearkin.core.state import State
from nearkin.nets.training import load_optimiser
from nearkin.solver.allocation import (
    CONTINUED,
    LEAST_FURTHER,
    LEAST_QUICK,
    LEAST_TRANSFER,
    MOST_MEMBERS,
    QUICK,
    REFITS,
    SIDE,
    WEAK_ON_IMAGES,
    Role,
    further_rank,
    regime,
)
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.plan import SHORT_SECONDS
from nearkin.solver.simple.data import FitContext, Sample
from nearkin.solver.simple.svm import PROBE, predicted_seconds
from nearkin.tasks.derive import limited


class _SideModels(TypedDict):
    """Names of the quick models that take part."""

    names: list[str]


def run_equally(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Give every contender the same time, or its usual number of steps without a time limit."""
    contest.allowance = contest.plan.allowance(contest.stages.seconds, len(contenders))
    if contest.allowance is not None:
        contest.why = f"{len(contenders)} contenders with {contest.allowance:.1f} s each"
        yield Note(contest.why)
    for contender in contenders:
        yield from contest.judge(replace(contender, seconds=contest.allowance))


def run_focused(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Train the contenders that fit into the time limit, the main ones first."""
    if not contest.plan.hurried:
        load_optimiser()
    favoured = regime(contest.task, next((item.favoured for item in contenders if item.favoured), ""))
    contest.why = favoured.why
    yield Note(favoured.why)
    by_role: dict[Role, list[Contender]] = {role: [] for role in Role}
    for contender in contenders:
        by_role[favoured.role(contender.name, contender.kind)].append(contender)
    further = sorted(by_role[Role.FURTHER], key=lambda contender: further_rank(contender.name))
    if contest.images:
        yield from _run_images(contest, by_role[Role.MAIN], by_role[Role.QUICK])
    else:
        yield from _run_table(contest, [*by_role[Role.MAIN], *by_role[Role.QUICK]])
    yield from _run_further(contest, further)
    yield from contest.add_ensemble()


def _run_images(contest: Contest, main: Sequence[Contender], quick: Sequence[Contender]) -> Work[None]:
    """Train the main networks for most of the time, before anything that a busy machine could prolong.

    All limits of the other models are in processor time: on a busy machine the time is divided as in a shorter run.
    """
    seconds, slowdown = contest.plan.seconds or 0.0, contest.slowdown
    limit = max(LEAST_QUICK * slowdown, QUICK * seconds)
    short = seconds < SHORT_SECONDS * slowdown
    weak = [contender for contender in quick if contender.name in WEAK_ON_IMAGES and short]
    quick = [contender for contender in quick if contender not in weak]
    if main:
        quick = yield from _side_models(contest, quick, limit)
    for number, contender in enumerate(main):
        share = (contest.left - limit * len(quick)) / (len(main) - number)
        yield from contest.judge(replace(contender, seconds=share / (1 + CONTINUED)), most_members=MOST_MEMBERS)
    for contender in quick:
        if not contest.trained or contest.left > limit:
            yield from contest.judge(replace(contender, seconds=limit))
        else:
            yield Note(f"no time is left for {contender.title}")
    for contender in weak:
        if not contest.trained:
            yield from contest.judge(replace(contender, seconds=limit))


def _side_models(contest: Contest, quick: Sequence[Contender], limit: float) -> Work[list[Contender]]:
    """The quick models that leave the main network its time; decided once, a resumed run keeps them."""

    def work(_: State | None) -> Work[State]:
        yield from ()
        slowdown, most = contest.slowdown, SIDE * contest.left
        kept = [contender.name for contender in quick if slowdown * _side_seconds(contender, limit / slowdown) <= most]
        return State({}, {"names": kept})

    names = [contender.name for contender in quick]
    inputs = {"data": contest.learn.fingerprint(), "names": names, "seconds": contest.plan.seconds}
    done = yield from contest.stages.stage("time of the simple models", inputs, work, key="side-models")
    kept = done.read(_SideModels)["names"]
    for contender in quick:
        if contender.name not in kept:
            yield Note(f"{contender.title} is left out: it would take the time of the main network")
    return [contender for contender in quick if contender.name in kept]


def _side_seconds(contender: Contender, limit: float) -> float:
    """Processor seconds of a quick model; infinite if it would see only a small part of the samples in `limit`."""
    task = contender.task
    if contender.kind == "transfer":
        return 0.0 if limit >= LEAST_TRANSFER else math.inf
    if contender.name != "svm" or len(task.train) <= PROBE:
        return 0.0
    few = limited(task, PROBE, contender.seed)
    x, y = few.train.all()
    classes = task.likelihood == "categorical"
    context = FitContext(contender.title, task.form, len(task.classes), shared_scale=True, seed=contender.seed)
    return predicted_seconds(Sample(x.flatten(1).float(), y if classes else y.float()), len(task.train), context)


def _run_table(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Give every model of a table an equal share of what is left; what one does not use is left for the others."""
    folds = len(contest.splits)
    kept = 1.0 if folds > 1 else 1 - REFITS
    ordered = sorted(contenders, key=lambda contender: bool(contender.networks))  # networks use all they get
    for number, contender in enumerate(ordered):
        share = max(LEAST_QUICK * contest.slowdown, kept * contest.left / (len(ordered) - number))
        if contest.trained and contest.left <= 0:
            yield Note(f"no time is left for {contender.title}")
        elif contender.networks:
            each = share / folds if folds > 1 else share / (1 + CONTINUED)
            yield from contest.judge(replace(contender, seconds=each), members=folds)
        else:
            yield from contest.judge(replace(contender, seconds=share))


def _run_further(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Give the other contenders, in their order, what the main ones could not use."""
    left, least = contest.left - _final_seconds(contest), LEAST_FURTHER * contest.slowdown
    chosen = contenders[: max(0, int(left // least))]
    for number, contender in enumerate(chosen):
        left = contest.left - _final_seconds(contest)
        if left < least / 2:
            return
        contest.allowance = left / (len(chosen) - number)
        seconds = contest.allowance / (1 + CONTINUED)
        most = 1 if contender.source is not None else MOST_MEMBERS  # kin are compared with one split
        yield from contest.judge(replace(contender, seconds=seconds), most_members=most)


def _final_seconds(contest: Contest) -> float:
    """Largest time of the final training of a contender so far."""
    times = [
        len(runs) * (runs[0].contender.sized.recipe.seconds or 0.0)
        for runs in contest.trained.values()
        if runs[0].contender.sized is not None and not contest.learned_all(runs)
    ]
    return CONTINUED * max(times, default=0.0)
