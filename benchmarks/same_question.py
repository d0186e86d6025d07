"""Same question, other data: does the Fréchet distance recognise what a task asks?

    python benchmarks/same_question.py [--folder FOLDER] [--networks lenet,...] [--trials 6]

Sixteen tasks: four questions about handwritten digits on three data sets, two about clothes on two data sets. For every
target the right source asks the same question about other images; the others ask other questions, some of them about
the target's own images. Every form of the distance (reading and aggregate) is scored by the share of targets whose
nearest other task, on average over trials, is a right one.

The default form is chosen on half of the targets and reported on the other half. The half is fixed by a rule that looks
at names only: of the sixteen, the eight whose names have the smallest SHA-256 hash choose.

Networks and distances are kept in FOLDER, and a second run continues from there. Figures go to
`benchmarks/same_question.json`, tables to `docs/figures/same-question.md`. Data: `$NEARKIN_DATA`.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import nearkin as nk
from nearkin.distance.fisher_based.frechet import AGGREGATES
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "same-question.md"
RECIPE = nk.Recipe(steps=100, learning_rate=4e-3)
NETWORKS = "mlp,lenet,vgg16?width=0.0625"
SIZE, SAMPLES, TEST_SAMPLES = 10, 150, 500
READINGS = ("padded", "model")  # `refit` misses every detector, see paper_tasks.py

QUESTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "parity": lambda y: y % 2,
    "is it 0": lambda y: (y == 0).long(),
    "0-1-2-3-other": lambda y: y.clamp_max(4),
    "all ten": lambda y: y,
}
DATA = {  # name of the data set: data string, which half of the training samples
    "digits": (f"digits?size={SIZE}", slice(None)),
    "mnist": (f"mnist?size={SIZE}&limit=3000", slice(0, None, 2)),
    "mnist inverted": (f"mnist?size={SIZE}&invert&limit=3000", slice(1, None, 2)),
    "fashion": (f"fashion?size={SIZE}&limit=3000", slice(0, None, 2)),
    "fashion inverted": (f"fashion?size={SIZE}&invert&limit=3000", slice(1, None, 2)),
}
HANDWRITTEN, CLOTHES = ("digits", "mnist", "mnist inverted"), ("fashion", "fashion inverted")
ASKED = (
    *((question, HANDWRITTEN, "") for question in QUESTIONS),
    *((question, CLOTHES, " of clothes") for question in ("is it 0", "all ten")),
)
TASKS = {f"{question} | {data}": (question, data, question + of) for question, datas, of in ASKED for data in datas}
"""By name: the question as a function of labels, the data set, and what is asked of what."""

ROWS = {
    "digits": "digits, 1,438 training samples",
    "mnist": "MNIST, 1,500 training samples",
    "mnist inverted": "MNIST, 1,500 other training samples, images inverted",
    "fashion": "Fashion-MNIST, 1,500 training samples",
    "fashion inverted": "Fashion-MNIST, 1,500 other training samples, images inverted",
}


def choosing() -> list[str]:
    """The eight tasks that the default is chosen on."""
    return sorted(TASKS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[: len(TASKS) // 2]


@cache
def images(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    text, half = DATA[data]
    base = nk.task(text)
    train, test = base.train.all(), base.test.fixed_subset(TEST_SAMPLES)
    return train.x[half], train.y[half], test.x, test.y


def task_named(name: str) -> nk.Task:
    question, data, _ = TASKS[name]
    x, y, x_test, y_test = images(data)
    asked = QUESTIONS[question]
    return nk.Task.from_arrays(name, x, asked(y), x_test, asked(y_test))


def measured(network: str, trials: int, folder: Path) -> dict[str, Any]:
    """Metrics and distances `[T, K, K]` of one network by every form."""
    with nk.Zoo(folder / network.replace("?", "-").replace("=", "-")) as zoo:
        for name in TASKS:
            if name not in zoo:
                record = zoo.add(task_named(name), network, trials=trials, recipe=RECIPE)
                print(f"  {network} {name}: {record.metric:.3f}, {record.seconds:.0f} s", flush=True)
        distances: dict[str, Any] = {"metric": {record.name: round(record.metric, 3) for record in zoo.records()}}
        for reading in READINGS:
            for aggregate in AGGREGATES:
                matrix = zoo.matrix(list(TASKS), reading=reading, aggregate=aggregate, samples=SAMPLES, epsilon=1.0)
                distances[f"{reading}/{aggregate}"] = matrix.trials
                print(f"  {network} {reading}/{aggregate}: {matrix.nearest()}", flush=True)
        return distances


def judged(distances: Tensor) -> dict[str, dict[str, Any]]:
    """For each target: the nearest on average, whether it is right, the margin, its deviation, right trials.

    The margin is the distance to the nearest task that asks something else, less that to the nearest right one.
    """
    names, cells_of = list(TASKS), {}
    for b, name in enumerate(names):
        right = torch.tensor([a != b and TASKS[a_name][2] == TASKS[name][2] for a, a_name in enumerate(names)])
        wrong = ~right & (torch.arange(len(names)) != b)
        column = distances[:, :, b]
        margins = column[:, wrong].amin(1) - column[:, right].amin(1)
        mean = column.mean(0)
        mean[b] = torch.inf
        cells_of[name] = {
            "nearest": names[int(mean.argmin())],
            "right": bool(right[mean.argmin()]),
            "margin": float(mean[wrong].amin() - mean[right].amin()),
            "std": float(margins.std()),
            "right trials": float((margins > 0).double().mean()),
        }
    return cells_of


def scored(forms: Mapping[str, Mapping[str, Any]], targets: Sequence[str]) -> dict[str, float]:
    """Scores of one form over networks and targets: share of right targets and trials, mean margin and deviation."""
    cells = [cells_of[name] for cells_of in forms.values() for name in targets]
    means = {key: fmean(float(cell[key]) for cell in cells) for key in ("right trials", "margin", "std")}
    return {"right": sum(cell["right"] for cell in cells), "of": len(cells), **means}


def chosen(scores: Mapping[str, Mapping[str, float]], reading: str) -> str:
    """The form of a reading with most right targets; of equals, the one with most right trials."""
    forms = [form for form in scores if form.startswith(f"{reading}/")]
    return max(forms, key=lambda form: (scores[form]["right"], scores[form]["right trials"]))


def summary(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Scores on both halves, and what was chosen."""
    networks = figures["networks"]
    forms = [f"{reading}/{aggregate}" for reading in READINGS for aggregate in AGGREGATES]
    judgements = {form: {network: judged(distances[form]) for network, distances in networks.items()} for form in forms}
    first = choosing()
    halves = {"choosing": first, "reporting": [name for name in TASKS if name not in first]}
    scores = {half: {form: scored(judgements[form], names) for form in forms} for half, names in halves.items()}
    chance = {half: len(networks) * sum(_chance(name) for name in names) for half, names in halves.items()}
    return {
        "halves": halves,
        "chance": chance,
        "scores": scores,
        "default": chosen(scores["choosing"], "padded"),
        "fall-back": chosen(scores["choosing"], "model"),
        "judgements": judgements,
    }


def _chance(name: str) -> float:
    """How often another task, drawn at random, asks the same question."""
    return sum(other != name and TASKS[other][2] == TASKS[name][2] for other in TASKS) / (len(TASKS) - 1)


def compact(distances: Mapping[str, Any]) -> dict[str, Any]:
    """Mean distances of a network as one line of numbers a source, so that the figures stay readable."""
    means = {form: trials.mean(0).tolist() for form, trials in distances.items() if form != "metric"}
    return {
        "metric": distances["metric"],
        "mean": {form: [" ".join(f"{value:.4f}" for value in row) for row in mean] for form, mean in means.items()},
    }


def shown(name: str) -> str:
    """A task's name, escaped for a Markdown table."""
    return name.replace(" | ", " on ")


def written(figures: Mapping[str, Any]) -> str:
    """The page."""
    sums, trials = figures["summary"], figures["trials"]
    scores, default, fallback = sums["scores"], sums["default"], sums["fall-back"]
    final = scores["reporting"][default]
    networks = list(figures["networks"])

    def right(form: str, network: str, half: str) -> str:
        cells = [sums["judgements"][form][network][name]["right"] for name in sums["halves"][half]]
        return f"{sum(cells)}"

    def mean(score: Mapping[str, float]) -> str:
        shares = f"{score['right']:.0f} of {score['of']:.0f}, {score['right trials']:.0%}"
        return f"{shares}, {score['margin']:+.3f} ± {score['std']:.3f}"

    rows = [
        [
            f"**`{form}`**" if form == default else f"`{form}`",
            *(f"{right(form, network, 'choosing')} + {right(form, network, 'reporting')}" for network in networks),
            mean(scores["choosing"][form]),
            mean(scores["reporting"][form]),
        ]
        for form in scores["choosing"]
    ]
    columns = [
        [
            shown(name),
            "choosing" if name in sums["halves"]["choosing"] else "reporting",
            *(_cell(sums["judgements"][default][network][name]) for network in networks),
        ]
        for name in TASKS
    ]
    metrics = [
        [shown(name), *(f"{distances['metric'][name]:.3f}" for distances in figures["networks"].values())]
        for name in TASKS
    ]
    first = scores["choosing"]
    equal = [
        f"`{form}`"
        for form in first
        if form.startswith("padded/") and form != default and first[form]["right"] == first[default]["right"]
    ]
    tie = f" As many right targets have {' and '.join(equal)}, so right trials decided." if equal else ""
    by_right = sorted(scores["reporting"], key=lambda form: -scores["reporting"][form]["right"])
    most = scores["reporting"][by_right[0]]["right"]
    best = " and ".join(f"`{form}`" for form in by_right if scores["reporting"][form]["right"] == most)
    unreliable = "" if most > 0.8 * final["of"] else "So no form recognises the question reliably. "
    by_data = [
        [data, *(_right_of(sums["judgements"][form], data) for form in (default, fallback, "padded/weight"))]
        for data in DATA
    ]
    return f"""<!-- written by benchmarks/same_question.py -->
# Same question, other data

Sixteen tasks: four questions about handwritten digits (parity; is it 0; 0-1-2-3-other; all ten) on three data sets, and
two about clothes (is it a T-shirt; all ten) on two. All images are brought to {SIZE} × {SIZE} pixels.

{table(["data set", "what it is"], [[name, text] for name, text in ROWS.items()])}

No two data sets share a sample. For each target the right source asks the same question on another data set. A distance
that follows the images instead names another question about the target's own images. Networks:
{", ".join(f"`{network}`" for network in networks)} (`width` is the factor on the width of every layer of the named
network), {trials} trials, each trial from one start for all tasks, {RECIPE.steps} steps; Fisher information on
{SAMPLES} training samples of the target.

**The choice.** The default form was chosen on {len(sums["halves"]["choosing"])} of the tasks: those whose names have
the smallest SHA-256 hash, a rule fixed before any distance was measured. It is the `padded` form with most right
targets there; of equals, with most right trials: **`{default}`**,
{first[default]["right"]:.0f} of {first[default]["of"]:.0f} targets (networks times tasks) and
{first[default]["right trials"]:.0%} of single trials.{tie} The label-free fall-back
is chosen in the same way among the `model` forms: `{fallback}`.

**The other half.** With `{default}`, the nearest other task on average over trials asks the same question for
**{final["right"]:.0f} of {final["of"]:.0f}** targets, in {final["right trials"]:.0%} of single trials; a task drawn at
random would for {sums["chance"]["reporting"]:.1f} of {final["of"]:.0f}. The mean margin is {final["margin"]:+.3f}; its
standard deviation over trials is {final["std"]:.3f} on average. Most right targets on this half have {best}:
{most:.0f}.

{unreliable}Right targets of all {len(TASKS)} tasks, by the data set of the target:

{table(["data set", f"`{default}`", f"`{fallback}`", "`padded/weight`"], by_data)}

## All forms

Right targets of the choosing half + of the reporting half (8 each), by network; then for each half right targets, right
single trials, mean margin ± mean standard deviation over trials. Only the bold row was reported after a choice; the
others are for information.

{table(["reading/aggregate", *(f"`{network}`" for network in networks), "choosing half", "reporting half"], rows)}

## Targets, `{default}`

The nearest other task on average over trials and the margin ± standard deviation over trials; wrong ones are marked ✗.

{table(["target", "half", *(f"`{network}`" for network in networks)], columns)}

## Test accuracy

{table(["task", *(f"`{network}`" for network in networks)], metrics)}
"""


def _right_of(judgements: Mapping[str, Mapping[str, Any]], data: str) -> str:
    cells = [cells_of[name]["right"] for cells_of in judgements.values() for name in TASKS if TASKS[name][1] == data]
    return f"{sum(cells)} of {len(cells)}"


def _cell(judgement: Mapping[str, Any]) -> str:
    wrong = "" if judgement["right"] else "✗ "
    return f"{wrong}{shown(judgement['nearest'])} ({judgement['margin']:+.3f} ± {judgement['std']:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-same-question")
    parser.add_argument("--networks", default=NETWORKS, help="comma between")
    parser.add_argument("--trials", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    networks = {}
    for network in options.networks.split(","):
        print(network, flush=True)
        networks[network] = measured(network, options.trials, options.folder)
    figures: dict[str, Any] = {"trials": options.trials, "summary": summary({"networks": networks})}
    figures["networks"] = {network: compact(distances) for network, distances in networks.items()}
    keep(__file__, figures)
    PAGE.write_text(written(json.loads(Path(__file__).with_suffix(".json").read_text())))


if __name__ == "__main__":
    main()
