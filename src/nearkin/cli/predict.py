"""`predict`: apply a solved model to new data in its original form."""

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nearkin as nk
from nearkin.cli.console import Settings, answer, escape, say, table
from nearkin.cli.zoo import Json, task_names
from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.files import write_durably
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from nearkin.core import state as states
    from nearkin.nets.solved import Solved
    from nearkin.solver import solution as solutions
    from nearkin.solver import solving
    from nearkin.tasks import new_inputs
    from nearkin.tasks.prediction import Prediction
    from nearkin.zoo import model_file
else:
    states, solutions, solving, new_inputs, model_file = map(
        Lazy,
        (
            "nearkin.core.state",
            "nearkin.solver.solution",
            "nearkin.solver.solving",
            "nearkin.tasks.new_inputs",
            "nearkin.zoo.model_file",
        ),
    )

SOLUTION_FILE = "solution.safetensors"
ABSTAIN = "abstain"
SHOWN = 20  # rows that are printed
FEWEST_RESIDUALS = 40  # test samples from which a 95 % interval is estimated
COVERAGE = 0.95
ANSWERED = ("categorical", "gaussian", "heteroscedastic")


@dataclass(frozen=True, eq=False)
class _Model:
    """A trained model and the facts of its task; `width` is half of a 95 % interval of its values, None if unknown."""

    solved: "Solved"
    facts: Mapping[str, Any]
    temperature: float = 1.0
    width: float | None = None


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
    out: Annotated[Path | None, typer.Option(help="The csv file to write.")] = None,
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
    inputs = new_inputs.read_inputs(data[0] if len(data) == 1 else data, facts, loaded.solved.name)
    for line in inputs.skipped:
        print(f"warning: skipped: {line}", file=sys.stderr)
    predicted = solutions.predict_inputs(loaded.solved, inputs, loaded.temperature)
    head, rows = _table(predicted, loaded.width, abstain)
    if out is not None:
        _write(out, head, rows)
    answer(_answer(predicted, rows, inputs.skipped, loaded, out), as_json, lambda: _show(head, rows, out))


def _model(text: str, settings: Settings) -> _Model:
    """The model that a path or the name of a task refers to."""
    path = Path(text)
    file = path / SOLUTION_FILE if path.is_dir() and (path / SOLUTION_FILE).is_file() else path
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
    with nk.Zoo(settings.zoo_path, create=False) as zoo:
        solution = solving.kept_solution(zoo, text) if text in zoo else None
        return _of_solved(zoo.solved(text)) if solution is None else _of_solution(solution)


def _of_solved(solved: "Solved") -> _Model:
    return _Model(solved, solved.facts)


def _of_solution(solution: "solutions.Solution") -> _Model:
    """Model of a solution, with the interval of its values; its own images may be smaller than those of the task."""
    residuals = [target - output for target, output in solution.quality.residuals]
    width = interval_width(residuals) if len(solution.classes) == 1 else None
    return _Model(solution.solved, solution.task, solution.temperature, width)


def interval_width(residuals: Sequence[float]) -> float | None:
    """Half the width of an interval that holds a new value with probability 0.95 or more; None for few residuals.

    It is the ⌈0.95 (n + 1)⌉-th smallest of n absolute residuals of samples that the model was not trained on (split
    conformal prediction).

    >>> interval_width([1.0] * 39), interval_width(range(-99, 0)), interval_width(range(100))
    (None, 95, 95)
    """
    ordered, count = sorted(map(abs, residuals)), len(residuals)
    return ordered[min(count, math.ceil(COVERAGE * (count + 1))) - 1] if count >= FEWEST_RESIDUALS else None


def _table(
    predicted: "Prediction", width: float | None, abstain: float | None
) -> tuple[list[str], list[list[str | float]]]:
    """Head and rows: the predicted class with its probability and those of all classes, or the values."""
    if predicted.probabilities is None:
        several = len(predicted.classes) > 1
        head = ["row", *([f"prediction {name}" for name in predicted.classes] if several else ["prediction"])]
        values: list[list[float]] = predicted.mean.tolist()
        if width is None:
            return head, [[row, *line] for row, line in zip(predicted.rows, values, strict=True)]
        bounds = [[line[0], line[0] - width, line[0] + width] for line in values]
        return [*head, "low", "high"], [[row, *line] for row, line in zip(predicted.rows, bounds, strict=True)]
    probabilities = predicted.probabilities.tolist()
    rows: list[list[str | float]] = []
    for row, name, label, line in zip(
        predicted.rows, predicted.names, predicted.labels.tolist(), probabilities, strict=True
    ):
        unsure = abstain is not None and line[label] < abstain
        rows.append([row, ABSTAIN if unsure else name, line[label], *line])
    return ["row", "prediction", "probability", *predicted.classes], rows


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
        "out": None if out is None else str(out),
    }
    if not classes and model.width is not None:
        facts["intervals"] = [row[2:4] for row in rows]
    return facts


def _write(out: Path, head: Sequence[str], rows: Sequence[Sequence[str | float]]) -> None:
    text = io.StringIO()
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
