"""The page of one task: what is asked of it, what it came to, what it is like, and what is kept of it."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from nearkin.core.errors import NearkinError
from nearkin.core.state import State
from nearkin.core.text import MISSING, counted, duration, number, plain
from nearkin.nets.trusted_code import refusal
from nearkin.report.drawing.genotype import drawing
from nearkin.report.html import Table
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.named import parse_network
from nearkin.solver.solution import KIND
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import ArtifactRecord, TaskRecord
from nearkin.tasks.metrics import metric_title
from nearkin.web.curve import Curve, curve
from nearkin.web.frame import command, render, task_link
from nearkin.web.measured import aggregates, ranking
from nearkin.zoo.cells import KeptCells

DRAWN_CELLS = 3
SHOWN_CLASSES = 40
CURVES = 6
NEAREST = 50


def task_page(zoo: ReadOnlyStore, task: TaskRecord) -> str:
    """All of it; a part that cannot be read says so and leaves the others standing."""
    artifacts = zoo.artifacts(task)
    weights = [item for item in artifacts if item.kind == "weights"]
    return render(
        "web_task.html",
        "/task",
        str(zoo.path),
        name=plain(task.name),
        answer=_answer(task),
        facts=_facts(task),
        classes=[plain(str(one)) for one in task.facts.get("classes", [])][:SHOWN_CLASSES],
        num_classes=task.num_classes,
        has_report=any(item.kind == KIND for item in artifacts),
        report=f"{task_link(task.name).href}/report",
        trials=Table(
            "Every trial on unseen data",
            ("Trial", "Metric", "Loss", "Steps", "Seconds", "Goal reached"),
            [_trial(item) for item in weights],
            frozenset(range(5)),
        ),
        curves=_read(lambda: _curves(zoo, weights[:CURVES])),
        kin=_kin(zoo, task),
        cells=_read(lambda: _cells(zoo, artifacts)),
        searched=_read(lambda: _searched(artifacts)),
        recipe=[(plain(key).replace("_", " "), plain(str(value))) for key, value in _recipe(task).items()],
        artifacts=Table(
            "Files of the task",
            ("Kind", "Trial", "Kilobytes", "Digest"),
            [(item.kind, str(item.trial), counted(item.size / 1024), f"{item.digest[:12]}…") for item in artifacts],
            frozenset({1, 2}),
        ),
        near=command(zoo.path, "near", task.name),
        search=command(zoo.path, "search", task.name),
        add_cells=command(zoo.path, "add", task.name, task.data or "DATA", "--cell"),
    )


def _answer(task: TaskRecord) -> Markup:
    """The one sentence: how well it is solved, and how well a blind guess would do."""
    std, guess = task.facts.get("metric_std"), task.facts.get("guess")
    spread = f" ± {std:.4f}" if task.trials > 1 and _is_number(std) else ""
    blind = f"; a blind guess gets {guess:.4f}" if _is_number(guess) else ""
    metric = plain(metric_title(str(task.facts.get("metric_name", "metric"))))
    said = f": {metric} {task.metric:.4f}{spread} on unseen data{blind}."
    return Markup("<b>{}</b>{}").format(plain(task.name), said)


def _facts(task: TaskRecord) -> list[tuple[str, str]]:
    train, test = (task.facts.get(key) for key in ("num_train", "num_test"))
    told = [
        ("data", plain(task.data) or "arrays, kept in the zoo"),
        ("network", plain(task.network)),
        ("weights", counted(task.parameters)),
        ("likelihood", plain(task.likelihood)),
        ("input", " × ".join(map(str, task.input_shape))),
        ("ε", f"{task.epsilon:.4f}"),
        ("seed", str(task.seed)),
        ("training", duration(task.seconds)),
        ("added", plain(task.created).replace("T", " ")[:19]),
    ]
    if isinstance(train, int) and isinstance(test, int):
        told.insert(4, ("samples", f"{counted(train)} to learn from, {counted(test)} to judge by"))
    if reason := refusal(task.network):
        told.insert(2, ("not trusted", plain(reason)))
    return told


def _trial(item: ArtifactRecord) -> tuple[str, ...]:
    """A row of the scores."""
    facts = item.facts
    reached = facts.get("reached")
    figures = (_figure(facts.get(key), form) for key, form in (("metric", ".4f"), ("loss", ".4g"), ("steps", "d")))
    return (
        str(item.trial),
        *figures,
        _figure(facts.get("seconds"), ".1f"),
        MISSING if reached is None else "yes" if reached else "no",
    )


def _curves(zoo: ReadOnlyStore, weights: Sequence[ArtifactRecord]) -> list[Curve]:
    found = (curve(f"trial {item.trial}", list(enumerate(zoo.losses(item), 1)), "steps") for item in weights)
    return [one for one in found if one is not None]


def _kin(zoo: ReadOnlyStore, task: TaskRecord) -> list[Table]:
    """For every kept measure the nearest sources."""
    tables = []
    for kept in zoo.measures():
        found = zoo.distances(kept.key, task)
        told = aggregates(found, kept.key)
        sources = ranking(found, task.name, told[0]) if told else []
        if sources:
            rows = [
                (
                    str(rank),
                    task_link(one.name),
                    number(one.distance),
                    number(one.std) if one.std > 0 else MISSING,
                    number(one.back),
                    str(one.trials),
                )
                for rank, one in enumerate(sources[:NEAREST], 1)
            ]
            cut = "" if len(rows) == len(sources) else f", the nearest {len(rows)} of {len(sources)}"
            caption = f"By {plain(kept.key)}, {plain(told[0])}; smaller is nearer{cut}"
            heads = ("Rank", "Source", "Distance", "±", "Back", "Trials")
            tables.append(Table(caption, heads, rows, frozenset({0, 2, 3, 4, 5}), head=1))
    return tables


def _cells(zoo: ReadOnlyStore, artifacts: Sequence[ArtifactRecord]) -> dict[str, Any] | None:
    kept = next((item for item in artifacts if item.kind == "cells"), None)
    if kept is None:
        return None
    cells = KeptCells.from_state(State.from_bytes(zoo.blob(kept), kept.task), plain(kept.task))
    return {
        "about": plain(f"Found by {cells.method} in the space {cells.space}, best first."),
        "drawn": [
            {
                "picture": _picture(one.genotype, f"cell-{place}"),
                "score": f"{one.score:.4f}",
                "text": plain(str(one.genotype)),
            }
            for place, one in enumerate(cells.found[:DRAWN_CELLS])
        ],
        "more": [(f"{one.score:.4f}", plain(str(one.genotype))) for one in cells.found[DRAWN_CELLS:]],
    }


def _searched(artifacts: Sequence[ArtifactRecord]) -> dict[str, Any] | None:
    """The network that was searched for the task; its facts are in the catalogue, so its weights are not read."""
    kept = next((item for item in artifacts if item.kind == "architecture"), None)
    if kept is None:
        return None
    text = str(kept.facts.get("network", ""))
    genotype, skeleton = parse_network(text)
    return {
        "picture": _picture(genotype, "searched"),
        "text": plain(str(genotype)),
        "network": plain(text),
        "metric": _figure(kept.facts.get("metric"), ".4f"),
        "size": f"{skeleton.num_cells} cells, {skeleton.channels} channels wide",
    }


def _picture(genotype: Genotype, name: str) -> Markup:
    return Markup(drawing(genotype, name=name))


def _read(part: Any) -> Any:
    """A part of the page, or why there is none."""
    try:
        return part()
    except NearkinError as broken:
        return {"broken": plain(str(broken))}


def _recipe(task: TaskRecord) -> dict[str, Any]:
    recipe = task.facts.get("recipe")
    return recipe if isinstance(recipe, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _figure(value: Any, form: str) -> str:
    if not _is_number(value):
        return MISSING
    return format(int(value) if form == "d" else value, form)
