"""`predict`: apply a solved model to new data in its original form."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.console import Settings, answer, escape, say, table
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from nearkin.core import state as states
    from nearkin.nets.solved import Solved
    from nearkin.solver import model_outputs, solving
    from nearkin.solver import solution as solutions
    from nearkin.tasks import new_inputs
    from nearkin.tasks.prediction import Prediction
    from nearkin.zoo import model_file
else:
    states, model_outputs, solutions, solving, new_inputs, model_file = map(
        Lazy,
        (
            "nearkin.core.state",
            "nearkin.solver.model_outputs",
            "nearkin.solver.solution",
            "nearkin.solver.solving",
            "nearkin.tasks.new_inputs",
            "nearkin.zoo.model_file",
        ),
    )

SOLUTION_FILE = "solution.safetensors"
SHOWN = 20  # rows that are printed
ANSWERED = ("categorical", "gaussian", "heteroscedastic")


@dataclass(frozen=True, eq=False)
class _Model:
    """A trained model and the facts of its task; `half_widths` of the 95 % intervals of values, empty if unknown."""

    solved: "Solved"
    facts: Mapping[str, Any]
    temperature: float = 1.0
    half_widths: tuple[float, ...] = ()


def predict(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="SOLUTION_OR_NAME",
            help="Folder or file of a solution, a model file, or a task of the zoo.",
            autocompletion=task_names,
        ),
    ],
    data: Annotated[
        list[str],
        typer.Argument(help="A csv file, an .npy or .npz file of inputs, a folder of images, or image files."),
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write: csv, or JSON if it ends in .json.")] = None,
    abstain: Annotated[
        float | None, typer.Option(min=0, max=1, help="Answer 'abstain' below this probability of the predicted class.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the classes or values of new data, given as the training data was: with the same columns or images.

    Missing cells, unknown categories and images of another size are handled as in training.
    """
    settings: Settings = context.obj
    loaded = _model(model, settings)
    facts = loaded.facts
    require(
        facts["likelihood"] in ANSWERED,
        f"'{loaded.solved.name}' is a {facts['likelihood']} task, predict answers classes and values; use Python",
        MismatchError,
    )
    require(
        abstain is None or facts["likelihood"] == "categorical",
        f"got --abstain, but '{loaded.solved.name}' predicts values without probabilities; leave it out",
    )
    require(
        abstain is None or 0 <= abstain <= 1,
        f"got --abstain {abstain}, expected a probability from 0 to 1; choose one such as 0.8",
    )
    inputs = new_inputs.read_inputs(
        data[0] if len(data) == 1 else [Path(path) for path in data], facts, loaded.solved.name
    )
    for line in inputs.skipped:
        print(f"warning: skipped: {line}", file=sys.stderr)
    for line in inputs.notes:
        print(f"warning: {line}", file=sys.stderr)
    predicted = model_outputs.predict_inputs(loaded.solved, inputs, loaded.temperature, half_widths=loaded.half_widths)
    head, rows = _table(predicted, abstain)
    facts = _answer(predicted, rows, inputs.skipped, loaded, out)
    if out is not None:
        _write(out, head, rows, facts)
    answer(facts, as_json, lambda: _show(head, rows, out))


def solution_file(path: Path) -> Path:
    """The file of a solution if the path is a folder that `solve` wrote, else the path."""
    return path / SOLUTION_FILE if (path / SOLUTION_FILE).is_file() else path


def _model(text: str, settings: Settings) -> _Model:
    """The model that a path or the name of a task refers to."""
    file = solution_file(Path(text))
    if file.is_file():
        state = states.State.load(file)
        if state.facts.get("format") == model_file.FORMAT:
            return _of_solved(model_file.loaded(file))
        return _of_solution(solutions.Solution.from_state(state, str(file)))
    require(
        file.suffix != ".safetensors",
        f"there is no file {file}; name a folder or file that nearkin solve wrote",
        DataError,
    )
    with settings.open_zoo(create=False) as zoo:
        solution = solving.kept_solution(zoo, text) if text in zoo else None
        return _of_solved(zoo.solved(text)) if solution is None else _of_solution(solution)


def _of_solved(solved: "Solved") -> _Model:
    return _Model(solved, solved.facts)


def _of_solution(solution: "solutions.Solution") -> _Model:
    """Model of a solution, with the intervals of its values; its own images may be smaller than those of the task."""
    return _Model(solution.solved, solution.task, solution.temperature, solution.quality.half_widths)


def _table(predicted: "Prediction", abstain: float | None) -> tuple[list[str], list[list[str | float]]]:
    """Head and rows: the predicted class with its probability and those of all classes, or values and intervals."""
    if predicted.probabilities is None:
        return _value_table(predicted)
    probabilities = predicted.probabilities.tolist()
    names = predicted.names if abstain is None else predicted.abstaining(abstain)
    rows: list[list[str | float]] = [
        [row, name, line[label], *line]
        for row, name, label, line in zip(predicted.rows, names, predicted.labels.tolist(), probabilities, strict=True)
    ]
    return ["row", "prediction", "probability", *predicted.classes], rows


def _value_table(predicted: "Prediction") -> tuple[list[str], list[list[str | float]]]:
    """The values of each target, with the ends of their intervals if these are known."""
    titles = [f" {name}" if len(predicted.classes) > 1 else "" for name in predicted.classes]
    tensors = [predicted.mean, *(predicted.interval or ())]
    head = ["row", *(name + title for title in titles for name in ("prediction", "low", "high")[: len(tensors)])]
    lines = zip(predicted.rows, *(tensor.tolist() for tensor in tensors), strict=True)
    rows: list[list[str | float]] = [
        [row, *(number for target in zip(*columns, strict=True) for number in target)] for row, *columns in lines
    ]
    return head, rows


def _answer(
    predicted: "Prediction",
    rows: Sequence[Sequence[str | float]],
    skipped: Sequence[str],
    model: _Model,
    out: Path | None,
) -> dict[str, Any]:
    """The answer as JSON values."""
    values = predicted.mean if len(predicted.classes) > 1 else predicted.mean.flatten()
    classes = predicted.probabilities is not None
    facts: dict[str, Any] = {
        "target": model.solved.name,
        "rows": list(predicted.rows),
        "predictions": [row[1] for row in rows] if classes else values.tolist(),
        "probabilities": None if predicted.probabilities is None else predicted.probabilities.tolist(),
        "classes": list(predicted.classes),
        "skipped": list(skipped),
        "notes": list(predicted.notes),
        "out": None if out is None else str(out),
    }
    if predicted.interval is not None:
        ends = zip(*(end.tolist() for end in predicted.interval), strict=True)
        intervals = [[list(pair) for pair in zip(low, high, strict=True)] for low, high in ends]
        facts["intervals"] = intervals if len(predicted.classes) > 1 else [pairs[0] for pairs in intervals]
    return facts


def _write(out: Path, head: Sequence[str], rows: Sequence[Sequence[str | float]], facts: Mapping[str, Any]) -> None:
    """Write the rows as csv, or the answer as JSON if the name of the file ends in .json."""
    text = io.StringIO()
    if out.suffix.lower() == ".json":
        json.dump(facts, text, indent=1, ensure_ascii=False)
    else:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(head)
        writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_durably(out, text.getvalue().encode())


def _show(head: Sequence[str], rows: Sequence[Sequence[str | float]], out: Path | None) -> None:
    """Print the first rows without the probabilities of every class, and where all of them are."""
    columns = 3 if "probability" in head else len(head)
    shown = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row[:columns]] for row in rows[:SHOWN]]
    table(head[:columns], shown, right=head[2:columns] if "probability" in head else head[1:columns])
    if len(rows) > SHOWN:
        say(f"[dim]{len(rows) - SHOWN} more rows{'' if out else '; write all of them with --out FILE'}[/dim]")
    if out is not None:
        count = f"{len(rows)} row{'s' if len(rows) != 1 else ''}"
        say(f"{count} written to {escape(str(out))}")
