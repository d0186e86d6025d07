"""How to get a solution again, and how to use it."""

from collections.abc import Mapping
from typing import Any

from nearkin import __version__
from nearkin.core.text import MISSING, counted, fact_text, plain, verbatim
from nearkin.report.html import Table
from nearkin.solver.solution import Solution
from nearkin.transfer.machine import PATH

_NAMES = {
    "budget": "Budget",
    "data": "Data",
    "device": "Device",
    "measures": "Measures of kin",
    "method": "Search method",
    "space": "Search space",
    "validation": "Share of the training data for the choice",
}


def command_of(solution: Solution, command: str) -> str:
    """What to type to get the solution again; a Python call where it came from there."""
    given = command or str(solution.made.get("command") or "")
    if given:
        return verbatim(given)
    source = plain(str(solution.task.get("source") or ""))
    target = repr(source) if source else "task"
    budget = solution.made.get("budget")
    known = [f"{plain(str(key))}={value!r}" for key, value in budget.items()] if isinstance(budget, Mapping) else []
    spend = f", nk.Budget({', '.join(known)})" if known else ""
    return f'import nearkin as nk\n\nsolution = nk.solve({target}, nk.Zoo("my-zoo"){spend}, seed={solution.seed})'


def usage(solution: Solution, file: str) -> tuple[str, str]:
    """A piece of Python that reads the solution and asks it, and commands that write the model for other programs."""
    shape = ", ".join(["N", *map(str, solution.task["input_shape"])])
    answer = "solution.predict(x).mean              # values, in the units of the data"
    if solution.classes and solution.quality.name == "accuracy":
        answer = (
            "solution.predict(x).probabilities     # of the classes\n"
            "solution.predict(x).names             # the likeliest"
        )
    python = (
        f"import nearkin as nk\n\nsolution = nk.Solution.load({file!r})\n"
        f"solution.model                        # the trained torch module\n"
        f"{answer}\n\n# x: raw inputs of shape [{shape}], as the task was made of"
    )
    forms = ("torch",) if solution.solved.network.startswith(PATH) else ("onnx", "torch")
    commands = "\n".join(f"nearkin export-model {file} --to {form}" for form in forms)
    return python, commands


def run_table(solution: Solution) -> Table:
    """Seed, budget and all else that was set, then versions."""
    made: Mapping[str, Any] = solution.made
    rows = [("Seed", str(solution.seed))]
    for key, value in made.items():
        if key not in ("command", "versions", "seed"):
            rows.append((_NAMES.get(key, plain(key).replace("_", " ").capitalize()), setting(value)))
    versions = made.get("versions")
    if isinstance(versions, Mapping):
        rows += [(f"Version of {plain(str(name))}", plain(str(number))) for name, number in versions.items()]
    else:
        rows.append(("Version of nearkin", __version__))
    rows.append(("Network", plain(solution.solved.network)))
    return Table("Settings and versions", ("What", "Value"), rows, sortable=False)


def setting(value: object) -> str:
    """A setting as a cell.

    >>> setting({"minutes": 5.0}), setting(["frechet", "short-finetune"]), setting(0.2)
    ('minutes: 5', 'frechet, short-finetune', '0.2')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(str(key))}: {setting(one)}" for key, one in value.items()) or MISSING
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(one, Mapping) for one in value) else ", ").join(map(setting, value)) or MISSING
    return fact_text(value)


def exactness(solution: Solution) -> str:
    """Whether another run gives the same bits."""
    budget = solution.made.get("budget")
    if isinstance(budget, Mapping) and budget.get("minutes") is not None:
        return (
            "The budget is in minutes, so sizes and steps were fitted to the speed of this machine: a faster one may "
            "find another answer. A budget in evaluations alone gives the same answer for the same seed."
        )
    return "The same seed, versions and machine give the same answer."


def data_table(solution: Solution) -> Table:
    """What the task is."""
    task = solution.task
    classes = list(task.get("classes", ()))
    names = ", ".join(plain(str(name)) for name in classes[:20]) + (", …" if len(classes) > 20 else "")
    kind = "values" if solution.quality.name != "accuracy" else "classes"
    rows = [
        ("Training samples", counted(task.get("num_train", 0))),
        ("Test samples", counted(task.get("num_test", solution.quality.count))),
        ("Input", fact_text(list(task.get("input_shape", ())))),
        (f"Number of {kind}", counted(len(classes))),
        ("Their names" if len(classes) != 1 else "Its name", names or MISSING),
        ("Read from", plain(str(task.get("source") or "")) or "arrays"),
    ]
    return Table("The task", ("What", "Value"), rows, sortable=False)
