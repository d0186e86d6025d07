"""How to reproduce a solution, and how to use it."""

from collections.abc import Mapping
from typing import Any

from nearkin import __version__
from nearkin.core.text import MISSING, counted, fact_text, plain, verbatim
from nearkin.nets.adopted_spec import network_label
from nearkin.report.html import HtmlTable
from nearkin.solver.solution import Solution
from nearkin.transfer.machine import PATH

_NAMES = {
    "budget": "Budget",
    "class_weight": "Weights of the classes in training",
    "data": "Data",
    "device": "Device",
    "measures": "Measures of distance",
    "method": "Search method",
    "metric": "Metric by which the answer was selected",
    "space": "Search space",
    "validation": "Share of the training data in the validation set",
}


def command_of(solution: Solution, command: str) -> str:
    """The command that reproduces the solution; a Python call if it was made in Python."""
    if line := command or str(solution.made.get("command") or ""):
        return verbatim(line)
    source = plain(str(solution.task.get("source") or ""))
    target = repr(source) if source else "task"
    budget = solution.made.get("budget")
    known = [f"{plain(str(key))}={value!r}" for key, value in budget.items()] if isinstance(budget, Mapping) else []
    spend = f", nk.Budget({', '.join(known)})" if known else ""
    chosen = [f", {name}={solution.made[name]!r}" for name in ("metric", "class_weight") if solution.made.get(name)]
    options = f"{spend}, seed={solution.seed}{''.join(chosen)}"
    return f'import nearkin as nk\n\nsolution = nk.solve({target}, nk.Zoo("my-zoo"){options})'


def usage(solution: Solution, file: str) -> tuple[str, str]:
    """Python code that loads the solution and predicts, and commands that export the model for other programs."""
    shape = ", ".join(["N", *map(str, solution.task["input_shape"])])
    answer = "solution.predict(x).mean              # predicted values, in the units of the data"
    if solution.classes and solution.quality.of_classes:
        answer = (
            "solution.predict(x).probabilities     # of all classes\n"
            "solution.predict(x).names             # the most probable class"
        )
    python = (
        f"import nearkin as nk\n\nsolution = nk.Solution.load({file!r})\n"
        f"solution.model                        # the trained torch module\n"
        f"{answer}\n\n# x: raw inputs of shape [{shape}], in the units of the original data"
    )
    forms = ("torch",) if solution.solved.network.startswith(PATH) else ("python", "onnx", "torch")
    commands = "\n".join(f"nearkin export-model {file} --to {form}" for form in forms)
    return python, commands


def run_table(solution: Solution) -> HtmlTable:
    """Seed, budget and all other settings, then versions."""
    settings: Mapping[str, Any] = solution.made
    rows = [("Seed", str(solution.seed))]
    for key, value in settings.items():
        if key not in ("command", "versions", "seed"):
            rows.append((_NAMES.get(key, plain(key).replace("_", " ").capitalize()), setting(value)))
    versions = settings.get("versions")
    if isinstance(versions, Mapping):
        rows += [(f"Version of {plain(str(name))}", plain(str(number))) for name, number in versions.items()]
    else:
        rows.append(("Version of nearkin", __version__))
    rows.append(("Network", plain(network_label(solution.solved.network))))
    return HtmlTable("Settings and versions", ("Setting", "Value"), rows, sortable=False)


def setting(value: object) -> str:
    """A setting as the text of a table cell.

    >>> setting({"minutes": 5.0}), setting(["frechet", "short-finetune"]), setting(0.2)
    ('minutes: 5', 'frechet, short-finetune', '0.2')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(str(key))}: {setting(item)}" for key, item in value.items()) or MISSING
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(item, Mapping) for item in value) else ", ").join(map(setting, value)) or MISSING
    return fact_text(value)


def exactness(solution: Solution) -> str:
    """Whether another run gives exactly the same result."""
    budget = solution.made.get("budget")
    if isinstance(budget, Mapping) and budget.get("minutes") is not None:
        return (
            "The time limit is in minutes, so the sizes of networks and the numbers of steps depend on the speed of "
            "the machine; a faster one may choose another model. A limit in evaluations gives the same result for "
            "the same seed."
        )
    return "The same seed, versions and machine give the same result."


def data_table(solution: Solution) -> HtmlTable:
    """Sizes, classes and origin of the data."""
    task = solution.task
    classes = list(task.get("classes", ()))
    names = ", ".join(plain(str(name)) for name in classes[:20]) + (", …" if len(classes) > 20 else "")
    kind = "classes" if solution.quality.of_classes else "values"
    rows = [
        ("Training samples", counted(task.get("num_train", 0))),
        ("Test samples", counted(task.get("num_test", solution.quality.count))),
        ("Input", fact_text(list(task.get("input_shape", ())))),
        (f"Number of {kind}", counted(len(classes))),
        ("Names" if len(classes) != 1 else "Name", names or MISSING),
        ("Read from", plain(str(task.get("source") or "")) or "arrays in memory"),
    ]
    return HtmlTable("The data", ("Property", "Value"), rows, sortable=False)
