"""Roster: the contenders that take part in a run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Work
from nearkin.core.state import State
from nearkin.nets.adopted_spec import network_label
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.solver.allocation import cnn_recipe, shifts, table_recipe
from nearkin.solver.contenders import (
    CNNS,
    HAND_MADE,
    TABLE_NETWORKS,
    TITLES,
    USUAL_CELLS,
    USUAL_WIDTH,
    Contender,
    hand_made_networks,
)
from nearkin.solver.contest import Contest
from nearkin.solver.encoder_head import model_facts
from nearkin.solver.frozen_encoder import encoder_contenders
from nearkin.solver.plan import Plan
from nearkin.solver.simple.models import simple_models
from nearkin.solver.simple.models import title as simple_title
from nearkin.solver.svm_checks import SAMPLES, THRESHOLD, mirror_ratio
from nearkin.tasks.named_inputs import described_fields, stored_fields
from nearkin.tasks.network_inputs import NETWORK_INPUTS, needs_adopted_network
from nearkin.tasks.task import Task
from nearkin.tasks.texts import is_text
from nearkin.zoo.search import SearchDomain
from nearkin.zoo.zoo import Zoo


def contenders(contest: Contest, zoo: Zoo, searches: Sequence[Contender], kin: Solved | None) -> Work[list[Contender]]:
    """Contenders of the plan: the searches, and those with a known architecture."""
    flip = yield from _flips(contest)
    encoders = yield from encoder_contenders(contest, zoo, flip)
    known = [*searches, *encoders, *_known(contest, kin, flip)]
    if contest.plan.hurried:
        known = [contender for contender in known if contender.kind == "simple"]
    contenders = [contender for contender in known if contest.plan.takes(contender.name)]
    if not contenders and needs_adopted_network(contest.task):
        raise MismatchError(_no_network_reads(contest.task))
    require(
        bool(contenders),
        f"none of the contenders {', '.join(contest.plan.only)} is available here; choose from "
        f"{', '.join(contender.name for contender in known)}",
    )
    return contenders


def _no_network_reads(task: Task) -> str:
    """Why no contender is available for a task whose inputs only adopted networks read."""
    if is_text(task):
        return (
            f"'{task.name}' has texts as inputs, and no network that can be used here reads texts; adopt one: nearkin "
            f"adopt NAME FOLDER, or read the texts as a table of words (without raw)"
        )
    fields = described_fields(stored_fields(task.preprocessing))
    return (
        f"'{task.name}' has {fields}, and no network that can be used here reads them; adopt one with a task that has "
        f"the same inputs: zoo.adopt(name, model, task=task)"
    )


def search_contender(contest: Contest, name: str, title: str, domain: SearchDomain, method: str) -> Contender:
    """Contender with a searched architecture."""
    return Contender(
        name=name, title=title, kind="searched", task=contest.learn, domain=domain, method=method,
        usual=USUAL_CELLS, seed=contest.plan.seed,
    )  # fmt: skip


def _known(contest: Contest, kin: Solved | None, flip: bool) -> Iterator[Contender]:
    """All contenders with a known architecture, in order of execution."""
    if kin is not None:
        kept = torch.ones(len(contest.learn.test), dtype=torch.bool)
        kept[list(contest.left_out)] = False
        scored = torch.nonzero(kept).flatten()
        whole = kin.inputs(contest.task)
        learn = contest.splits.task(whole)
        learn = replace(learn, test=learn.test.chosen(scored))
        facts = model_facts(kin, contest.task) if NETWORK_INPUTS in kin.facts else None
        title = f"{network_label(kin.network)} of '{kin.name}'"
        extra = {"settings": {"kin": kin.name, "left_out": len(contest.left_out)}}
        rows = contest.splits.rows()[scored]
        yield Contender(
            name="finetune", title=f"{title}, fine-tuned", kind="tuned", task=learn,
            networks=(kin.network,), recipe=_finetune_recipe(contest.plan, learn), source=kin, seed=kin.seed,
            extra=extra, rows=rows, whole=whole, model_facts=facts,
        )  # fmt: skip
        yield Contender(
            name="transfer", title=f"{title}, closed-form transfer", kind="transfer",
            task=learn, source=kin, seed=contest.plan.seed, extra=extra, rows=rows, whole=whole, model_facts=facts,
        )  # fmt: skip
    if needs_adopted_network(contest.task):
        return
    if contest.images:
        for name, network in CNNS.items():
            yield Contender(
                name=name, title=TITLES[name], kind="made", task=contest.learn, networks=(network,),
                recipe=replace(cnn_recipe(contest.task, flip), **contest.plan.options()), seed=contest.plan.seed,
            )  # fmt: skip
    for name in (default_network(contest.task), *(contest.plan.hand_made if contest.images else ())):
        networks = (
            hand_made_networks(name, contest.plan.width) if name in HAND_MADE else [TABLE_NETWORKS.get(name, name)]
        )
        yield Contender(
            name=name, title=TITLES.get(name, name), kind="made", task=contest.learn, networks=tuple(networks),
            usual=USUAL_WIDTH, seed=contest.plan.seed,
            recipe=None if contest.images else table_recipe(contest.learn, **contest.plan.options()),
        )  # fmt: skip
    for name in simple_models(contest.task):
        task = replace(contest.task, test=contest.learn.test, source="") if contest.cross_validated else contest.learn
        yield Contender(
            name=name, title=simple_title(name, contest.task.likelihood), kind="simple", task=task,
            seed=contest.plan.seed, cross_validated=contest.cross_validated, metric=contest.plan.metric,
        )  # fmt: skip


def _finetune_recipe(plan: Plan, task: Task) -> Recipe:
    """Recipe of fine-tuning: that of the plan, with random shifts of images when time is limited."""
    recipe = plan.recipe(task)
    images = len(task.input_shape) == 3
    return replace(recipe, augment=shifts(task)) if plan.focused and images and not recipe.augment else recipe


def _flips(contest: Contest) -> Work[bool]:
    """Whether the CNNs are trained with random flips; decided once."""
    if not contest.images or contest.task.likelihood != "categorical" or contest.plan.hurried:
        return False

    def work(_: State | None) -> Work[State]:
        yield from ()
        return State({}, {"ratio": mirror_ratio(contest.learn, contest.plan.seed, samples)})

    samples = SAMPLES if contest.plan.unhurried else SAMPLES // 2
    inputs = {"data": contest.learn.fingerprint(), "seed": contest.plan.seed, "samples": samples}
    done = yield from contest.stages.stage("check of flips", inputs, work, key="flips")
    return float(done.facts["ratio"]) > THRESHOLD
