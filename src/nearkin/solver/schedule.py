"""Order and time of the contenders: equal shares, or the ones that the data favours first (`solver.allocation`)."""

from collections.abc import Sequence
from dataclasses import replace

from nearkin.core.events import Note, Work
from nearkin.nets.training import load_optimiser
from nearkin.solver.allocation import (
    CONTINUED,
    LEAST_FURTHER,
    LEAST_QUICK,
    MOST_MEMBERS,
    QUICK,
    REFITS,
    WEAK_ON_IMAGES,
    Role,
    further_rank,
    regime,
)
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.plan import SHORT_SECONDS


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
    favoured = regime(contest.task)
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
    """Train the main networks for most of the time, before anything that a busy machine could prolong."""
    seconds = contest.plan.seconds or 0.0
    limit = max(LEAST_QUICK, QUICK * seconds)
    weak = [contender for contender in quick if contender.name in WEAK_ON_IMAGES and seconds < SHORT_SECONDS]
    quick = [contender for contender in quick if contender not in weak]
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


def _run_table(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Give every model of a table an equal share of what is left; what one does not use is left for the others."""
    folds = len(contest.splits)
    kept = 1.0 if folds > 1 else 1 - REFITS
    ordered = sorted(contenders, key=lambda contender: bool(contender.networks))  # networks use all they get
    for number, contender in enumerate(ordered):
        share = max(LEAST_QUICK, kept * contest.left / (len(ordered) - number))
        if contest.trained and contest.left <= 0:
            yield Note(f"no time is left for {contender.title}")
        elif contender.networks:
            each = share / folds if folds > 1 else share / (1 + CONTINUED)
            yield from contest.judge(replace(contender, seconds=each), members=folds)
        else:
            yield from contest.judge(replace(contender, seconds=share))


def _run_further(contest: Contest, contenders: Sequence[Contender]) -> Work[None]:
    """Give the other contenders, in their order, what the main ones could not use."""
    left = contest.left - _final_seconds(contest)
    chosen = contenders[: max(0, int(left // LEAST_FURTHER))]
    for number, contender in enumerate(chosen):
        left = contest.left - _final_seconds(contest)
        if left < LEAST_FURTHER / 2:
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
