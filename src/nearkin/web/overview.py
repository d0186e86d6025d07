"""The list of tasks and the map of the task space, as pages."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from nearkin.core.text import MISSING, plain
from nearkin.distance.registry import about
from nearkin.nets.trusted_code import is_trusted
from nearkin.report.html import Link, Table
from nearkin.report.kin import MOST_TASKS
from nearkin.report.page import map_values
from nearkin.store.read_only import Distance, ReadOnlyStore
from nearkin.store.records import TaskRecord
from nearkin.web.frame import command, render, task_link
from nearkin.web.measured import aggregates, matrix_of

PAGE = 200  # tasks of one page
LOOKED_FOR = ("name", "data", "network", "likelihood")


def task_facts(task: TaskRecord) -> dict[str, Any]:
    """What `nearkin list --json` tells of a task."""
    names = ("name", "data", "network", "likelihood", "num_classes", "metric", "epsilon", "trials", "parameters")
    facts = {name: getattr(task, name) for name in (*names, "seconds", "seed", "created")}
    return {**facts, "trusted": is_trusted(task.network)}


def list_page(zoo: ReadOnlyStore, query: Mapping[str, str]) -> str:
    """All tasks, or those in which the words looked for occur."""
    tasks, cells, searched = zoo.tasks(), zoo.tasks_with("cells"), zoo.tasks_with("architecture")
    words = query.get("q", "").strip()[:200]
    found = [task for task in tasks if _matches(task, words)]
    last = max(1, -(-len(found) // PAGE))
    number = min(_whole(query.get("page", "1")), last)
    rows = [
        (
            task_link(task.name),
            plain(task.data) or "(arrays)",
            plain(task.network) + ("" if is_trusted(task.network) else " (not trusted)"),
            f"{task.metric:.4f}",
            str(task.trials),
            str(task.parameters),
            f"{task.seconds:.1f}",
            _has(task, cells, searched),
            plain(task.created)[:10],
        )
        for task in found[(number - 1) * PAGE : number * PAGE]
    ]
    near = {
        side: f"/?{urlencode({**({'q': words} if words else {}), 'page': other})}"
        for side, other in (("earlier", number - 1), ("later", number + 1))
        if 1 <= other <= last
    }
    heads = ("Task", "Data", "Network", "Metric", "Trials", "Weights", "Seconds", "Search", "Added")
    caption = f"Solved tasks{'' if last == 1 else f', page {number} of {last}'}; click a heading to sort"
    return render(
        "web_list.html",
        "/",
        str(zoo.path),
        total=len(tasks),
        found=len(found),
        words=words,
        table=Table(caption, heads, rows, frozenset({3, 4, 5, 6}), kind="close"),
        near=near,
        command=command(zoo.path, "add", "zero", "digits?detect=0"),
    )


def map_view(zoo: ReadOnlyStore, query: Mapping[str, str]) -> str:
    """The map over distances that are kept; nothing is measured for it."""
    kept, order = zoo.measures(), [task.name for task in zoo.tasks()]
    values: dict[str, Any] = {"total": len(order), "command": command(zoo.path, "matrix")}
    values |= {"map": None, "choices": [], "cut": "", "missing": 0}
    if kept:
        keys = [one.key for one in kept]
        key = query["measure"] if query.get("measure") in keys else keys[0]
        found = zoo.distances(key)
        told = aggregates(found, key)
        aggregate = query["aggregate"] if query.get("aggregate") in told else told[0]
        compared = {name for one in found for name in (one.source, one.target)}
        shown = [name for name in order if name in compared]
        values |= {"choices": _choices(keys, key, told, aggregate), "missing": len(order) - len(shown)}
        if len(shown) > MOST_TASKS:
            values["cut"] = f"A map of {len(shown)} tasks cannot be read; these are the first {MOST_TASKS}."
        values["map"] = _map(tuple(_hashable(found)), key, aggregate, tuple(shown[:MOST_TASKS]), values["command"])
    return render("web_map.html", "/map", str(zoo.path), **values)


@lru_cache(maxsize=8)
def _map(rows: tuple[Any, ...], key: str, aggregate: str, order: tuple[str, ...], command: str) -> Mapping[str, Any]:
    """What the map shows; the same distances are drawn once."""
    found = [Distance(source, target, trial, dict(values)) for source, target, trial, values in rows]
    matrix = matrix_of(found, f"{key}, {aggregate}", aggregate, order)
    return map_values(matrix, about=about(key.partition(" ")[0]), command=command)


def _hashable(found: Sequence[Distance]) -> list[tuple[str, str, int, tuple[tuple[str, Any], ...]]]:
    return sorted((one.source, one.target, one.trial, tuple(sorted(one.values.items()))) for one in found)


def _choices(keys: Sequence[str], key: str, told: Sequence[str], aggregate: str) -> list[tuple[Link, bool]]:
    """Other measures and aggregates to look at; none where there is one."""
    pairs = [(one, aggregate) for one in keys if one != key] + [(key, one) for one in told]
    links = [
        (Link(f"{plain(one)}, {plain(by)}", f"/map?{urlencode({'measure': one, 'aggregate': by})}"), (one, by))
        for one, by in sorted(pairs)
    ]
    return [(link, pair == (key, aggregate)) for link, pair in links] if len(links) > 1 else []


def _matches(task: TaskRecord, words: str) -> bool:
    """Whether every word occurs in what a task is called and made of."""
    text = " ".join(str(getattr(task, name)) for name in LOOKED_FOR).casefold()
    return all(word in text for word in words.casefold().split())


def _has(task: TaskRecord, cells: set[str], searched: set[str]) -> str:
    kept = [word for word, names in (("cells", cells), ("network", searched)) if task.name in names]
    return ", ".join(kept) or MISSING


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() and len(text) < 9 else 1
