"""Web page of one task: its score, its trials, related tasks, cells, searched network and files."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from nearkin.core.errors import NearkinError
from nearkin.core.state import State
from nearkin.core.text import MISSING, counted, duration, number, plain
from nearkin.nets.adopted_spec import network_label
from nearkin.nets.trusted_code import refusal
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.glossary import glossary
from nearkin.report.html import HtmlTable
from nearkin.search.networks.named import parse_network
from nearkin.solver.solution import KIND
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import ArtifactRecord, TaskRecord
from nearkin.tasks.metrics import R2, metric_title
from nearkin.web.frame import command, render, task_link
from nearkin.web.sparkline import Sparkline, sparkline
from nearkin.web.stored_distances import aggregates, ranking
from nearkin.zoo.best_cells import BestCells

DRAWN_CELLS = 3
SHOWN_CLASSES = 40
CURVES = 6
NEAREST = 50


def task_page(zoo: ReadOnlyStore, task: TaskRecord) -> str:
    """The whole page; a section that cannot be read shows the reason, the others are shown as usual."""
    artifacts = zoo.artifacts(task)
    weights = [item for item in artifacts if item.kind == "weights"]
    recipe = facts if isinstance(facts := task.facts.get("recipe"), dict) else {}
    return render(
        "web_task.html",
        "/task",
        zoo.address,
        name=plain(task.name),
        answer=_answer(task),
        facts=_facts(task),
        classes=[plain(str(name)) for name in task.facts.get("classes", [])][:SHOWN_CLASSES],
        num_classes=task.num_classes,
        has_report=any(item.kind == KIND for item in artifacts),
        report=f"{task_link(task.name).href}/report",
        trials=HtmlTable(
            "Every trial on the test set",
            ("Trial", "Test score", "Loss", "Steps", "Seconds", "Goal reached"),
            [_trial(item) for item in weights],
            frozenset(range(5)),
        ),
        curves=_read(lambda: _curves(zoo, weights[:CURVES])),
        kin=_kin(zoo, task),
        cells=_read(lambda: _cells(zoo, artifacts)),
        searched=_read(lambda: _searched(artifacts)),
        recipe=[(plain(key).replace("_", " "), plain(str(value))) for key, value in recipe.items()],
        artifacts=HtmlTable(
            "Files of the task",
            ("Kind", "Trial", "Kilobytes", "Digest"),
            [(item.kind, str(item.trial), counted(item.size / 1024), f"{item.digest[:12]}…") for item in artifacts],
            frozenset({1, 2}),
        ),
        glossary=glossary("task"),
        near=command(zoo.address, "near", task.name),
        search=command(zoo.address, "search", task.name),
        add_cells=command(zoo.address, "add", task.name, task.data or "DATA", "--cell"),
    )


def _answer(task: TaskRecord) -> Markup:
    """One sentence: the test score of the task, and that of a constant answer."""
    std, guess = task.facts.get("metric_std"), task.facts.get("guess")
    spread = f" ± {std:.4f}" if task.trials > 1 and _is_number(std) else ""
    name = str(task.facts.get("metric_name", "metric"))
    constant = "the mean value" if name == R2 else "the majority class"
    baseline = f"; always answering {constant} has {guess:.4f}" if _is_number(guess) else ""
    text = f": {plain(metric_title(name))} {task.metric:.4f}{spread} on the test set{baseline}."
    return Markup("<b>{}</b>{}").format(plain(task.name), text)


def _facts(task: TaskRecord) -> list[tuple[str, str]]:
    train, test = (task.facts.get(key) for key in ("num_train", "num_test"))
    facts = [
        ("data", plain(task.data) or "arrays, stored in the zoo"),
        ("network", plain(network_label(task.network))),
        ("parameters", counted(task.parameters)),
        ("likelihood", plain(task.likelihood)),
        ("input", " × ".join(map(str, task.input_shape))),
        ("ε", f"{task.epsilon:.4f}"),
        ("seed", str(task.seed)),
        ("training time", duration(task.seconds)),
        ("added", plain(task.created).replace("T", " ")[:19]),
    ]
    if isinstance(train, int) and isinstance(test, int):
        facts.insert(4, ("samples", f"{counted(train)} for training, {counted(test)} for testing"))
    if reason := refusal(task.network):
        facts.insert(2, ("not trusted", plain(reason)))
    return facts


def _trial(item: ArtifactRecord) -> tuple[str, ...]:
    """A row of the table of trials."""
    facts = item.facts
    reached = facts.get("reached")
    figures = (_figure(facts.get(key), form) for key, form in (("metric", ".4f"), ("loss", ".4g"), ("steps", "d")))
    return (
        str(item.trial),
        *figures,
        _figure(facts.get("seconds"), ".1f"),
        MISSING if reached is None else "yes" if reached else "no",
    )


def _curves(zoo: ReadOnlyStore, weights: Sequence[ArtifactRecord]) -> list[Sparkline]:
    lines = (sparkline(f"trial {item.trial}", list(enumerate(zoo.losses(item), 1)), "steps") for item in weights)
    return [line for line in lines if line is not None]


def _kin(zoo: ReadOnlyStore, task: TaskRecord) -> list[HtmlTable]:
    """The nearest sources by every stored measure."""
    tables = []
    for measure in zoo.measures():
        distances = zoo.distances(measure.key, task)
        names = aggregates(distances, measure.key)
        sources = ranking(distances, task.name, names[0]) if names else []
        if sources:
            rows = [
                (
                    str(rank),
                    task_link(source.name),
                    number(source.distance),
                    number(source.std) if source.std > 0 else MISSING,
                    number(source.back),
                    str(source.trials),
                )
                for rank, source in enumerate(sources[:NEAREST], 1)
            ]
            cut = "" if len(rows) == len(sources) else f", the nearest {len(rows)} of {len(sources)}"
            caption = f"By {plain(measure.key)}, {plain(names[0])}; smaller is nearer{cut}"
            heads = ("Rank", "Source", "Distance", "±", "Distance back", "Trials")
            tables.append(HtmlTable(caption, heads, rows, frozenset({0, 2, 3, 4, 5}), head=1))
    return tables


def _cells(zoo: ReadOnlyStore, artifacts: Sequence[ArtifactRecord]) -> dict[str, Any] | None:
    record = next((item for item in artifacts if item.kind == "cells"), None)
    if record is None:
        return None
    cells = BestCells.from_state(State.from_bytes(zoo.blob(record), record.task), plain(record.task))
    return {
        "about": plain(f"Found by {cells.method} in the space {cells.space}, best first."),
        "drawn": [
            {
                "picture": Markup(draw_genotype(cell.genotype, name=f"cell-{rank}")),
                "score": f"{cell.score:.4f}",
                "text": plain(str(cell.genotype)),
            }
            for rank, cell in enumerate(cells.found[:DRAWN_CELLS])
        ],
        "more": [(f"{cell.score:.4f}", plain(str(cell.genotype))) for cell in cells.found[DRAWN_CELLS:]],
    }


def _searched(artifacts: Sequence[ArtifactRecord]) -> dict[str, Any] | None:
    """The searched network of the task; its facts are in the catalogue, so its weights are not read."""
    record = next((item for item in artifacts if item.kind == "architecture"), None)
    if record is None:
        return None
    text = str(record.facts.get("network", ""))
    genotype, skeleton = parse_network(text)
    return {
        "picture": Markup(draw_genotype(genotype, name="searched")),
        "text": plain(str(genotype)),
        "metric": _figure(record.facts.get("metric"), ".4f"),
        "size": f"{skeleton.num_cells} cells, {skeleton.channels} channels wide",
    }


def _read(section: Callable[[], Any]) -> Any:
    """A section of the page, or the reason why it cannot be read."""
    try:
        return section()
    except NearkinError as broken:
        return {"broken": plain(str(broken))}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _figure(value: Any, form: str) -> str:
    if not _is_number(value):
        return MISSING
    return format(int(value) if form == "d" else value, form)
