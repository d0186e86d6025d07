"""Task distances of paper 000 on data at hand: four MNIST tasks, four CIFAR-10 tasks, figure 4, image processing.

    python benchmarks/paper_tasks.py [--only mnist,cifar,settings,processing] [--trials 6] [--folder FOLDER]

Every set of tasks is solved with each network and compared in every reading and aggregate; a column is right if the
task that is nearest on average over trials is the expected one (`NEAREST`). Networks and
distances are kept in FOLDER, and a second run continues from there. Figures go to `benchmarks/paper_tasks.json`, the
table to `docs/figures/paper-tasks.md`. Data: `$NEARKIN_DATA`; sizes are small enough for an hour on one core.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.distance.fisher_based.frechet import AGGREGATES
from nearkin.distance.fisher_based.readings import READINGS
from nearkin.distance.matrix import DistanceMatrix
from results import keep, table

DOCS = Path(__file__).parents[1] / "docs"
RECIPE = nk.Recipe(steps=150, learning_rate=4e-3)
MNIST = {
    "0": "mnist?detect=0&balance&limit=2000&size=14",
    "6": "mnist?detect=6&balance&limit=2000&size=14",
    "0123": "mnist?classes=0,1,2,3&rest=other&balance&limit=2000&size=14",
    "ten": "mnist?limit=2000&size=14",
}
MNIST_NETWORKS = "lenet,resnet18?width=0.125,vgg16?width=0.125,densenet121?width=0.125"
CIFAR = {
    "car cat ship": "cifar10?detect=automobile,cat,ship{}&size=16",
    "cat ship truck": "cifar10?detect=cat,ship,truck{}&size=16",
    "bird frog horse": "cifar10?classes=bird,frog,horse&rest=other{}&size=16",
    "ten": "cifar10?limit=3000&size=16",
}
PROCESSING = ("autoencode", "denoise", "edges", "keypoints", "inpaint", "colour")
NEAREST = [1, 0, 3, 2]
"""Expected nearest other task, column by column.

Section 4.1 of the paper says of MNIST that tasks 0 and 1 are highly related and that task 3 is nearest to task 2. The
last column (2 for task 3) follows from neither and is our expectation. Of CIFAR-10 section 4.2 says only that the
nearest task is the same for all networks and settings, not which; we expect the same pattern there.
"""


@dataclass(frozen=True)
class Run:
    """Options: trials, networks of the MNIST tasks, readings, and the folder for networks and distances."""

    trials: int
    networks: tuple[str, ...]
    readings: tuple[str, ...]
    folder: Path

    def within(self, name: str) -> "Run":
        """The same options with a subfolder."""
        return replace(self, folder=self.folder / name)


def solved(tasks: Mapping[str, str], network: str, trials: int, recipe: nk.Recipe, folder: Path) -> nk.Zoo:
    zoo = nk.Zoo(folder)
    for name, data in tasks.items():
        if name in zoo:
            continue
        record = zoo.add(nk.task(data, name=name), network, trials=trials, recipe=recipe)
        print(
            f"  {network} {name}: {record.facts['metric_name']} {record.metric:.3f}, {record.seconds:.0f} s", flush=True
        )
    return zoo


def compared(zoo: nk.Zoo, readings: Sequence[str], samples: int = 500) -> dict[str, DistanceMatrix]:
    """Matrices by reading and aggregate."""
    return {
        f"{reading}/{aggregate}": zoo.matrix(reading=reading, aggregate=aggregate, samples=samples, epsilon=1.0)
        for reading in readings
        for aggregate in AGGREGATES
    }


def judged(results: DistanceMatrix) -> dict[str, Any]:
    """The nearest other task of every column, for the mean and for each trial, and its margin."""
    others = results.trials.clone()
    for trial in others:
        trial.fill_diagonal_(torch.inf)
    mean = others.mean(0)
    ordered = mean.sort(0).values
    right = [float((others.argmin(1)[:, b] == wanted).double().mean()) for b, wanted in enumerate(NEAREST)]
    return {
        "nearest": mean.argmin(0).tolist(),
        "right in trials": [round(share, 2) for share in right],
        "margin": [round(float(value), 3) for value in (ordered[1] - ordered[0])],
        **{key: results.to_dict()[key] for key in ("mean", "std")},
    }


def of_four(
    tasks: Mapping[str, str], networks: tuple[str, ...], recipe: nk.Recipe, how: Run, trials: int | None = None
) -> dict[str, Any]:
    """Every network and reading on a set of four tasks."""
    results: dict[str, Any] = {}
    for network in networks:
        with solved(tasks, network, trials or how.trials, recipe, how.folder / re.sub(r"\W", "-", network)) as zoo:
            metrics = {record.name: round(record.metric, 3) for record in zoo.records()}
            results[network] = {
                "metric": metrics,
                **{form: judged(item) for form, item in compared(zoo, how.readings).items()},
            }
        for form, result in results[network].items():
            print(
                f"  {network} {form}: {result.get('nearest', result)} {result.get('right in trials', '')}", flush=True
            )
    return results


def mnist(how: Run) -> dict[str, Any]:
    return of_four(MNIST, how.networks, RECIPE, how)


def cifar(how: Run) -> dict[str, Any]:
    tasks = {name: data.format("&balance&limit=3000") for name, data in CIFAR.items()}
    recipe = nk.Recipe(steps=300, learning_rate=4e-3)
    return of_four(tasks, ("resnet18?width=0.125",), recipe, how, min(how.trials, 3))


def settings(how: Run) -> dict[str, Any]:
    """Figure 4: balanced, augmented, unbalanced; here on MNIST's tasks, which two cores can solve often enough."""
    natural = {name: data.replace("&balance&limit=2000", "").replace("limit=2000&", "") for name, data in MNIST.items()}
    changed = nk.Recipe(steps=150, learning_rate=4e-3, augment="crop=1")
    return {
        "with augmentation": of_four(MNIST, ("lenet",), changed, how.within("augmented"))["lenet"],
        "unbalanced": of_four(natural, ("lenet",), RECIPE, how.within("unbalanced"))["lenet"],
    }


def processing(how: Run) -> dict[str, Any]:
    """Image-to-image tasks on colour images with the paper's autoencoder, its sizes scaled."""
    tasks = {kind: f"cifar10?dense={kind}&limit=2000&size=16" for kind in PROCESSING[:-1]}
    recipe = nk.Recipe(steps=300, learning_rate=1e-3)
    with solved(tasks, "autoencoder?width=0.25", min(how.trials, 3), recipe, how.folder) as zoo:
        results = zoo.matrix(samples=200, epsilon=1.0)
        print(f"  autoencoder {results.title}: {results.nearest()}", flush=True)
        return {**results.to_dict(), "metric": {record.name: round(record.metric, 3) for record in zoo.records()}}


PARTS = {"mnist": mnist, "cifar": cifar, "settings": settings, "processing": processing}


ABOUT = """\
The networks are smaller than the paper's: LeNet, and ResNet-18, VGG-16 and DenseNet-121 at ⅛ of their width. Images
have 14 × 14 pixels (CIFAR-10: 16 × 16), tasks 2,000 to 3,000 samples, trainings 150 to 300 steps. Networks of one
trial start from the same weights. The paper takes the Fisher information on the target's test data; here it is on its
training data, so that no selection by the distance depends on test labels.

Expected nearest other tasks are 1, 0, 3, 2. For MNIST the paper states the first three in words: the detectors of 0
and 6 are highly related, and all ten digits are nearest to 0-1-2-3-other. It does not state what is nearest to all
ten digits; 0-1-2-3-other is our expectation. Of CIFAR-10 it states that the nearest task does not depend on network
and setting, but not which task that is; the pattern of MNIST is our expectation there too. Its figure 4 shows other
settings of CIFAR-10 with VGG-16; here they are applied to the MNIST tasks.
"""
WIDTHS = {"0.125": "⅛", "0.25": "¼", "0.0625": "¹⁄₁₆"}
NAMES = {"lenet": "LeNet", "resnet18": "ResNet-18", "vgg16": "VGG-16", "densenet121": "DenseNet-121"}


def named(network: str) -> str:
    """A network string in words, with its width; other text unchanged."""
    name, _, width = network.partition("?width=")
    return f"{NAMES.get(name, name)}{f', {WIDTHS[width]} width' if width in WIDTHS else ''}"


UNKNOWN = "–"


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return UNKNOWN
    right = sum(a == b for a, b in zip(result["nearest"], NEAREST, strict=True))
    return f"{right} of 4, {min(result['right in trials']):.0%}, {min(result['margin']):.3f}"


def written(figures: Mapping[str, Any]) -> str:
    """Tables of all parts."""
    lines = [
        "<!-- written by benchmarks/paper_tasks.py -->",
        "# The paper's task distances on small networks",
        "",
        ABOUT,
    ]
    titles = {
        "mnist": "Four MNIST tasks",
        "cifar": "Four CIFAR-10 tasks",
        "settings": "Other settings of the MNIST tasks, LeNet",
    }
    for key, title in titles.items():
        networks = figures.get(key, {})
        if not networks:
            continue
        forms = [f"{reading}/{aggregate}" for reading in READINGS for aggregate in AGGREGATES]
        rows = [[f"`{form}`", *(_cell(result.get(form)) for result in networks.values())] for form in forms]
        rows = [row for row in rows if set(row[1:]) != {UNKNOWN}]
        lines += [
            f"## {title}", "",
            "Columns whose nearest task on average over trials is the expected one, the smallest share of trials that "
            "agree, and the smallest margin to the second.", "",
            table(["reading/aggregate", *map(named, networks)], rows), "",
        ]  # fmt: skip
    if "processing" in figures:
        result = figures["processing"]
        rows = [
            [name, *(f"{m:.3f} ± {s:.3f}" for m, s in zip(means, stds, strict=True))]
            for name, means, stds in zip(result["tasks"], result["mean"], result["std"], strict=True)
        ]
        lines += ["## Image processing, autoencoder of ¼ width", "",
                  f"`{result['form']}`; rows are sources, columns targets.", "",
                  table(["", *result["tasks"]], rows), ""]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma between")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--networks", default=MNIST_NETWORKS, help="of the MNIST tasks, comma between")
    parser.add_argument("--readings", default=",".join(READINGS), help="comma between; refit takes longest")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-paper-tasks")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the figures")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".json")
    for name in [] if chosen.page else chosen.only.split(","):
        print(name, flush=True)
        networks, readings = tuple(chosen.networks.split(",")), tuple(chosen.readings.split(","))
        results = PARTS[name](Run(chosen.trials, networks, readings, chosen.folder / name))
        kept = json.loads(file.read_text()) if file.exists() else {}
        if name == "mnist":  # networks of earlier runs stay
            results = {**kept.get(name, {}), **results}
        keep(__file__, {**{key: kept[key] for key in PARTS if key in kept}, name: results})
    page = DOCS / "figures" / "paper-tasks.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(written(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
