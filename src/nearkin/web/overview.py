"""Web pages of the list of tasks and of their map."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from nearkin.core.text import MISSING, plain
from nearkin.distance.registry import about
from nearkin.nets.trusted_code import is_trusted
from nearkin.report.glossary import glossary
from nearkin.report.html import HtmlTable, Link
from nearkin.report.nearest_kin import MOST_TASKS
from nearkin.report.page import map_values
from nearkin.store.read_only import Distance, ReadOnlyStore
from nearkin.store.records import TaskRecord
from nearkin.web.frame import command, render, task_link
from nearkin.web.stored_distances import aggregates, matrix_of

PAGE = 200  # tasks on one page
SEARCHED = ("name", "data", "network", "likelihood")


def task_facts(task: TaskRecord) -> dict[str, Any]:
    """Facts about a task, as in `nearkin list --json`."""
    names = ("name", "data", "network", "likelihood", "num_classes", "metric", "epsilon", "trials", "parameters")
    facts = {name: getattr(task, name) for name in (*names, "seconds", "seed", "created")}
    return {**facts, "trusted": is_trusted(task.network)}


def list_page(zoo: ReadOnlyStore, query: Mapping[str, str]) -> str:
    """All tasks, or those that contain the words of the search field."""
    tasks, cells, searched = zoo.tasks(), zoo.tasks_with("cells"), zoo.tasks_with("architecture")
    words = query.get("q", "").strip()[:200]
    matching = [task for task in tasks if _matches(task, words)]
    last = max(1, -(-len(matching) // PAGE))
    number = min(_whole(query.get("page", "1")), last)
    rows = [
        (
            task_link(task.name),
            f"{task.metric:.4f}",
            plain(task.data) or "(arrays)",
            plain(task.network) + ("" if is_trusted(task.network) else " (not trusted)"),
            str(task.trials),
            str(task.parameters),
            f"{task.seconds:.1f}",
            _has(task, cells, searched),
            plain(task.created)[:10],
        )
        for task in matching[(number - 1) * PAGE : number * PAGE]
    ]
    near = {
        side: f"/?{urlencode({**({'q': words} if words else {}), 'page': other})}"
        for side, other in (("earlier", number - 1), ("later", number + 1))
        if 1 <= other <= last
    }
    heads = ("Task", "Test score", "Data", "Network", "Trials", "Parameters", "Seconds", "Searched", "Added")
    caption = f"Solved tasks{'' if last == 1 else f', page {number} of {last}'}; click a heading to sort"
    return render(
        "web_list.html",
        "/",
        zoo.address,
        total=len(tasks),
        found=len(matching),
        words=words,
        table=HtmlTable(caption, heads, rows, frozenset({1, 4, 5, 6}), kind="close"),
        near=near,
        command=command(zoo.address, "add", "zero", "digits?detect=0"),
        glossary=glossary("list"),
    )


def map_view(zoo: ReadOnlyStore, query: Mapping[str, str]) -> str:
    """The map of stored distances; nothing is measured for it."""
    measures, order = zoo.measures(), [task.name for task in zoo.tasks()]
    values: dict[str, Any] = {"total": len(order), "command": command(zoo.address, "matrix")}
    values |= {"map": None, "choices": [], "cut": "", "missing": 0}
    if measures:
        keys = [measure.key for measure in measures]
        key = query["measure"] if query.get("measure") in keys else keys[0]
        distances = zoo.distances(key)
        names = aggregates(distances, key)
        aggregate = query["aggregate"] if query.get("aggregate") in names else names[0]
        compared = {name for distance in distances for name in (distance.source, distance.target)}
        shown = [name for name in order if name in compared]
        values |= {"choices": _choices(keys, key, names, aggregate), "missing": len(order) - len(shown)}
        if len(shown) > MOST_TASKS:
            values["cut"] = f"A map of {len(shown)} tasks would be unreadable; it shows the first {MOST_TASKS}."
        values["map"] = _map(tuple(_hashable(distances)), key, aggregate, tuple(shown[:MOST_TASKS]), values["command"])
    return render("web_map.html", "/map", zoo.address, **values)


@lru_cache(maxsize=8)
def _map(rows: tuple[Any, ...], key: str, aggregate: str, order: tuple[str, ...], command: str) -> Mapping[str, Any]:
    """Values of the map page; the same distances are drawn once."""
    distances = [Distance(source, target, trial, dict(values)) for source, target, trial, values in rows]
    matrix = matrix_of(distances, f"{key}, {aggregate}", aggregate, order)
    return map_values(matrix, about=about(key.partition(" ")[0]), command=command)


def _hashable(distances: Sequence[Distance]) -> list[tuple[str, str, int, tuple[tuple[str, Any], ...]]]:
    return sorted((d.source, d.target, d.trial, tuple(sorted(d.values.items()))) for d in distances)


def _choices(keys: Sequence[str], key: str, names: Sequence[str], aggregate: str) -> list[tuple[Link, bool]]:
    """Links to all measures and aggregates, and which is shown; empty if there is only one."""
    pairs = [(other, aggregate) for other in keys if other != key] + [(key, name) for name in names]
    links = [
        (Link(f"{plain(own)}, {plain(by)}", f"/map?{urlencode({'measure': own, 'aggregate': by})}"), (own, by))
        for own, by in sorted(pairs)
    ]
    return [(link, pair == (key, aggregate)) for link, pair in links] if len(links) > 1 else []


def _matches(task: TaskRecord, words: str) -> bool:
    """Whether every word occurs in the name, data, network or likelihood of a task."""
    text = " ".join(str(getattr(task, name)) for name in SEARCHED).casefold()
    return all(word in text for word in words.casefold().split())


def _has(task: TaskRecord, cells: set[str], searched: set[str]) -> str:
    words = [word for word, names in (("cells", cells), ("network", searched)) if task.name in names]
    return ", ".join(words) or MISSING


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() and len(text) < 9 else 1
