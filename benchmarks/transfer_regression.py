"""Closed-form transfer of values compared with Gaussian processes, last layers and ridge: sinusoids, rain, malaria.

    python benchmarks/transfer_regression.py [--part sinusoids|meta|rain|malaria] [--cache FILE] [--page]

Every result (of a source network with all its target tasks) is stored in the cache, so that the command resumes
after an interruption; then `transfer_regression.json`, the page and its picture are written. With `--page` nothing is
measured and they are written from the JSON. Rain and malaria need the real data sets in `$NEARKIN_DATA`, or in
`shared/data` beside the repository.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nearkin as nk
import transfer_regression_ways as ways
from nearkin.tasks.examples import Examples
from nearkin.tasks.papers.malaria import malaria_noise
from nearkin.tasks.papers.precipitation import station_tasks
from nearkin.tasks.papers.sinusoids import FREQUENCIES, Sinusoids, sinusoid_tasks
from nearkin.tasks.task import Task
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.family import Family, family
from nearkin.transfer.hierarchy.meta_learn import MetaLearning, meta_learned
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.linearized import linearize
from nearkin.transfer.marginal_likelihood import learn
from results import keep
from transfer_regression_page import write
from transfer_regression_summary import summary

ROOT = Path(__file__).parents[1]
PARTS = ("sinusoids", "meta", "rain", "malaria")
KINDS = {"sinusoids": ("narrow", "wide"), "meta": ("narrow",)}
SOURCES = range(5)  # seeds of source networks
POOL, JUDGED, META_POOL = 20, 100, 100  # tasks that hyper-parameters, and source weights, are learned from; that judge
FIRST = {"source": 11_000, "pool": 12_000, "judged": 13_000, "meta": 14_000}  # seeds; the method was made on others
RAIN_SEEDS = range(3)
SPLITS, GIVEN = range(20), (5, 10, 20, 30)
MALARIA = {
    "school to community": ("kenya&survey=school", "kenya&survey=community"),
    "community to school": ("kenya&survey=community", "kenya&survey=school"),
    "Kenya to Gambia": ("kenya&survey=community", "gambia"),
    "Gambia to Kenya": ("gambia", "kenya&survey=community"),
}
Points = ways.Points


class Cache:
    """Cache of results by name, one line of JSON each; missing ones are measured."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows: dict[str, Any] = dict(json.loads(line) for line in lines)

    def cell(self, name: str, measure: Callable[[], Any]) -> None:
        """The result of a name; it is measured and stored if it is not in the cache."""
        if name in self.rows:
            return
        start = time.process_time()
        self.rows[name] = {**measure(), "seconds": round(time.process_time() - start, 1)}
        with self.file.open("a") as out:
            out.write(json.dumps([name, self.rows[name]]) + "\n")
        print(f"  {name}: {self.rows[name]['seconds']} s", file=sys.stderr, flush=True)


def points(examples: Examples) -> Points:
    batch = examples.all()
    return batch.x.double(), batch.y.double().reshape(-1)


def judged_by(some: Family, train: Points, test: Points) -> dict[str, ways.Score]:
    """A family with one noise and scale for all tasks, and with those that suit the task."""
    return {
        "pooled": ways.of_normal(*some.adapted(*train).predict(test[0], observed=True), test[1]),
        "blended": ways.of_mixture(some.blended(*train).at(test[0]), test[1]),
    }


# Sinusoids


def sine_source(law: Sinusoids, seed: int) -> nn.Module:
    """Two hidden layers of 40 on the ten points of one curve, as in the paper's appendix F."""
    x, y = points(law.draw(FIRST["source"] + seed, 0)[0].train)
    net = ways.tanh_net((1, 40, 40, 1), seed)
    return ways.sgd_trained(net, x.float(), y.float()[:, None], epochs=2500, batch=3, rate=1e-3, seed=seed)


def sine_tasks(law: Sinusoids, seed: int) -> tuple[list[Points], list[Task]]:
    pool = [points(task.train) for task in sinusoid_tasks(POOL, FIRST["pool"] + seed, law)]
    return pool, sinusoid_tasks(JUDGED, FIRST["judged"] + seed, law)


def sinusoids(kind: str, seed: int) -> dict[str, Any]:
    law = Sinusoids(frequency=FREQUENCIES[kind])
    net = sine_source(law, seed)
    flat, head = linearize(net), linearize(net, "head")
    pool, judged = sine_tasks(law, seed)
    some, last = family(flat, pool), family(head, pool)
    shared, blended = ways.SharedRbf(pool), ways.BlendedRbf(pool)
    rows: dict[str, list[ways.Score]] = {}
    for task in judged:
        train, test = points(task.train), points(task.test)
        plain = Hyper(noise=0.01, scale=1.0, mean=some.hyper.mean)
        predictions = {
            **{f"network, {name}": score for name, score in judged_by(some, train, test).items()},
            "network, own": ways.of_normal(*gaussian(flat, *train).predict(test[0], observed=True), test[1]),
            "network, fixed": ways.of_normal(*gaussian(flat, *train, plain).predict(test[0], observed=True), test[1]),
            **{f"last layer, {name}": score for name, score in judged_by(last, train, test).items()},
            "last layer, SGD": ways.last_layer(net, train, test, epochs=250, batch=3, rate=1e-3),
            "RBF, pooled": shared.score(train, test),
            "RBF, blended": blended.score(train, test),
            "RBF, own": ways.rbf_own(train, test),
            "ridge": ways.ridge(train, test),
        }
        for name, score in predictions.items():
            rows.setdefault(name, []).append([round(value, 4) for value in score])
    facts = {"hyper": some.hyper.facts(), "shape": some.variety.shape, "shares": some.variety.shares,
             "bytes": some.num_bytes}  # fmt: skip
    return {"rows": rows, "facts": facts}


def meta(kind: str, seed: int) -> dict[str, Any]:
    law = Sinusoids(frequency=FREQUENCIES[kind])
    seen = [points(task.train) for task in sinusoid_tasks(META_POOL, FIRST["meta"] + seed, law)]
    better = meta_learned(linearize(sine_source(law, seed)), seen, MetaLearning(seed=seed))
    pool, judged = sine_tasks(law, seed)
    some = family(better, pool)
    rows: dict[str, list[ways.Score]] = {}
    for task in judged:
        for name, score in judged_by(some, points(task.train), points(task.test)).items():
            rows.setdefault(f"network meta-learned, {name}", []).append([round(value, 4) for value in score])
    return {"rows": rows}


# Rain


@cache
def stations() -> dict[str, Task]:
    return {task.name.split(",")[0].title(): task for task in station_tasks(str(data() / "ushcn_daily"))}


@cache
def rain_rbf(name: str) -> ways.SharedRbf:
    return ways.SharedRbf([points(stations()[name].train)])


@cache
def rain_own(name: str) -> ways.Score:
    return ways.rbf_own(points(stations()[name].train), points(stations()[name].test))


def rain(source: str, seed: int) -> dict[str, Any]:
    """One hidden layer of 400, trained on ten months of one station, scored on the last two months of the others."""
    x, y = points(stations()[source].train)
    net = ways.tanh_net((1, 400, 1), seed)
    ways.sgd_trained(net, x.float(), y.float()[:, None], epochs=1000, batch=100, rate=1e-4, seed=seed)
    flat, head = linearize(net), linearize(net, "head")
    rows: dict[str, ways.Score] = {}
    for target, task in stations().items():
        if target == source:
            continue
        train, test = points(task.train), points(task.test)
        others = [points(item.train) for name, item in stations().items() if name != target]
        some, last = family(flat, others), family(head, others)
        predictions = {
            **{f"network, {name}": score for name, score in judged_by(some, train, test).items()},
            "network, own": ways.of_normal(*gaussian(flat, *train).predict(test[0], observed=True), test[1]),
            "last layer, pooled": judged_by(last, train, test)["pooled"],
            "last layer, own": ways.of_normal(*gaussian(head, *train).predict(test[0], observed=True), test[1]),
            "RBF, of the source": rain_rbf(source).score(train, test),
            "RBF, own": rain_own(target),
        }
        for name, score in predictions.items():
            rows[f"{target}|{name}"] = [round(value, 4) for value in score]
    return {"rows": rows}


# Malaria


@cache
def survey(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Places, shares of people with the parasite, and variances of these, unscaled and all together."""
    os.environ["NEARKIN_DATA"] = str(data())
    task = nk.task(f"malaria?place={name}")
    columns: list[list[Tensor]] = [[], [], []]
    for examples, noise in zip((task.train, task.test), malaria_noise(task), strict=True):
        batch, (inputs, targets) = examples.all(), (examples.scaling, examples.target_scaling)
        columns[0].append(batch.x.double() * inputs.std.double() + inputs.mean.double())
        columns[1].append((batch.y.double().reshape(-1, 1) * targets.std.double() + targets.mean.double())[:, 0])
        columns[2].append(noise.double() * targets.std.double().square())
    x, y, noise = (torch.cat(some) for some in columns)
    return x, y, noise


def spread_net(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """2-64-64-2, a mean and a variance, by the heteroscedastic likelihood of the paper's appendix F."""
    net = ways.tanh_net((2, 64, 64, 2), seed).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=3e-3, momentum=0.9)
    falling = torch.optim.lr_scheduler.StepLR(optimizer, 400, 0.3)
    for _ in range(1200):
        optimizer.zero_grad()
        spread_loss(net(x), y).backward()
        optimizer.step()
        falling.step()
    return net


def spread_loss(prediction: Tensor, y: Tensor) -> Tensor:
    variance = 1e-2 + nn.functional.softplus(prediction[:, 1])
    return 0.5 * ((y - prediction[:, 0]).square() / variance + variance.log()).mean()


def retrained(net: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """Means after 100 more epochs of the last layer alone, as the paper retrains it."""
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    last = [value for name, value in net.named_parameters() if name.startswith("4.")]
    optimizer = torch.optim.SGD(last, lr=3e-3, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        spread_loss(net(x), y).backward()
        optimizer.step()
    prediction = net(new)[:, 0].detach()
    net.load_state_dict(kept)
    return prediction


def malaria(pair: str, seed: int) -> dict[str, Any]:
    """Errors on the other places, in shares of people, by the number of given target places."""
    (xs, ys, _), (xt, yt, noise) = (survey(name) for name in MALARIA[pair])
    off, size = ys.mean(), ys.std()
    same = pair.startswith(("school", "community"))  # the same land: one map
    middle, scale = (xs.mean(0), xs.std(0)) if same else (xt.mean(0), xt.std(0))
    x, y, known = (xt - middle) / scale, (yt - off) / size, noise / size**2
    net = spread_net((xs - xs.mean(0)) / xs.std(0), (ys - off) / size, seed)
    flat, head = linearize(net, outputs=0), linearize(net, "4", outputs=0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    left = order[max(GIVEN) :]
    rows: dict[str, list[float]] = {}
    for count in GIVEN:
        own = order[:count]
        predictions: dict[str, Tensor] = {
            "blind": flat.mean(x[left])[:, 0],
            "mean of the given": y[own].mean().expand(len(left)),
            "last layer, retrained": retrained(net, x[own], y[own], x[left]),
        }
        for name, source in (("network", flat), ("last layer", head)):
            hyper = learn(source, x[own], y[own], noise=known[own], how=Learning(extra=True))
            predictions[name] = gaussian(source, x[own], y[own], hyper, known[own]).mean(x[left])[:, 0]
        for name, prediction in predictions.items():
            rows.setdefault(name, []).append(float((prediction - y[left]).square().mean().sqrt() * size))
        train, test = (x[own], y[own]), (x[left], y[left])
        rows.setdefault("RBF, own", []).append(ways.rbf_own(train, test, known[own].numpy())[0] * float(size))
    return {"rows": {name: [round(value, 5) for value in some] for name, some in rows.items()}}


def data() -> Path:
    variable = os.environ.get("NEARKIN_DATA", "")
    folder = Path(variable).expanduser() if variable else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        raise SystemExit(f"there is no {folder}; set NEARKIN_DATA to the folder of real data sets")
    return folder


def cells(section: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of the results of a section, with the functions that measure them."""
    if section in ("sinusoids", "meta"):
        measure = sinusoids if section == "sinusoids" else meta
        for kind in KINDS[section]:
            for seed in SOURCES:
                yield f"{section}|{kind}|{seed}", lambda kind=kind, seed=seed: measure(kind, seed)
    elif section == "rain":
        for seed in RAIN_SEEDS:
            for source in stations():
                yield f"rain|{source}|{seed}", lambda source=source, seed=seed: rain(source, seed)
    else:
        for split in SPLITS:
            for pair in MALARIA:
                yield f"malaria|{pair}|{split}", lambda pair=pair, split=split: malaria(pair, split)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=PARTS, help="measure one part, and write nothing but the cache")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "transfer_regression_cache.jsonl")
    parser.add_argument("--page", action="store_true", help="measure nothing, and write the page from the JSON")
    arguments = parser.parse_args()
    if not arguments.page:
        kept = Cache(arguments.cache)
        for section in [arguments.part] if arguments.part else PARTS:
            for name, measure in cells(section):
                kept.cell(name, measure)
        if arguments.part:
            return
        keep(__file__, summary(kept.rows))
    figures = json.loads(Path(__file__).with_suffix(".json").read_text())
    write(figures, ROOT / "docs" / "figures" / "transfer-regression.md")


if __name__ == "__main__":
    main()
