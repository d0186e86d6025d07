"""Does a search that begins with a near kin's cells save time, and up to which distance?

    python benchmarks/kin_start.py [--cache FILE] [--offline] [--tables FOLDER]
    python benchmarks/kin_start.py --distances FOLDER

Small tasks of three data sets, each as target of all others; every cell is trained briefly from scratch. The cache
keeps the results, so that an interrupted command can be resumed; with `--offline` nothing is trained and
searches that are not whole in the cache are left out. Writes `benchmarks/kin_start.json`, the page and its picture, and
the trials from which `nearkin solve` learns its threshold (`src/nearkin/solver/trials.json`). The second command
measures the distances of these trials again, in the default form, and leaves their gains as they are; the networks for
it are kept in FOLDER.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import spearmanr

import nearkin as nk
from nearkin.core.events import Work, finish
from nearkin.core.rng import Streams, derived_seed
from nearkin.nets.evaluate import evaluate
from nearkin.search.genotype_evaluation import VALIDATION, evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.evolution import evolution
from nearkin.search.methods.random_search import DRAWN, random_search
from nearkin.search.methods.sampling import Sampling
from nearkin.search.methods.warm_start import warm_start_search
from nearkin.search.networks.build import Skeleton
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.registry import PROXY
from nearkin.search.searcher import NUM_BEST
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.restricted import restrict_space
from nearkin.solver.nearness import Trial, shipped, threshold
from results import keep, table
from tables import questions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures" / "kin-start.md"
SHIPPED = ROOT / "src" / "nearkin" / "solver" / "trials.json"
SKELETON = Skeleton(channels=8, num_cells=2, between="pool", growth=1, stem_stride=4)
SPACE = GeneralSpace()
DATA = {
    "mnist": "mnist?limit=1250&even",
    "fashion": "fashion?limit=1250",
    "mnist inverted": "mnist?invert&limit=1250&even",
    "fashion tops": "fashion?classes=0,2,3,4,6&rest=drop&limit=1250",
    "mnist 5-9": "mnist?classes=5,6,7,8,9&rest=drop&limit=1250&even",
    "cifar10 grey": "cifar10?grey&size=28&limit=1250",
}
EVALUATIONS, CELL_EVALUATIONS = 20, 24
SEEDS = (0,)
CELL_SEED, FRESH_SEEDS = 1000, (2000, 2001)  # no search's own: of a source's cells, of final figures
TEST_SAMPLES = 2000
TRIALS = 3
NEARNESS = ("near", "far")
QUERIES, TABLE_SEEDS = 100, 10
COLOURS = ("#0072B2", "#B34700", "#56A0D3", "#E69F00", "#2A4B6E", "#7A7A7A", "#7B4FA3", "#3C8D53")
NOTHING, KIN, FREE, DRAWS = "from nothing", "kin's space", "kin, free", "draws in kin's space"
CURVES = {"near kin": "#0067a8", "far kin": "#62b8ef", NOTHING: "#b34700"}


class Missing(Exception):
    """Error: a training is not in the cache, and `--offline` forbids it."""


@dataclass(frozen=True)
class Step:
    """One evaluation of a search: validation accuracy, test accuracy (which the search does not use), and seconds."""

    genotype: str
    score: float
    test: float
    seconds: float
    origin: str


class Cache:
    """Cache of trainings by task, seed and genotype, one line of JSON each; missing ones are trained."""

    def __init__(self, file: Path, offline: bool) -> None:
        self.file, self.offline = file, offline
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows: dict[str, Any] = dict(json.loads(line) for line in lines)

    def trained(self, name: str, genotype: Genotype, seed: int) -> list[float]:
        """Validation accuracy, test accuracy, and process seconds of training and validation."""
        key = f"{name}|{seed}|{genotype}"
        if key not in self.rows:
            self.keep(key, self._train(name, genotype, seed))
        return list(self.rows[key])

    def keep(self, key: str, value: Any) -> Any:
        """Append a line to the file."""
        self.rows[key] = value
        with self.file.open("a") as out:
            out.write(json.dumps([key, value]) + "\n")
        return value

    def _train(self, name: str, genotype: Genotype, seed: int) -> list[float]:
        if self.offline:
            raise Missing(name)
        task = task_named(name)
        start = time.process_time()
        done = evaluate_genotype(genotype, task, SKELETON, PROXY, seed, validation=VALIDATION)
        seconds = time.process_time() - start
        unseen = evaluate(done.network, test_part(name), task.form)
        return [round(done.metric, 5), round(unseen.metric, 5), round(seconds, 3)]


@cache
def task_named(name: str) -> nk.Task:
    return nk.task(DATA[name], name=name)


@cache
def test_part(name: str) -> Any:
    examples = task_named(name).test
    chosen = torch.randperm(len(examples), generator=Streams(0).at("test"))[:TEST_SAMPLES]
    return examples.chosen(chosen.sort().values)


@dataclass(frozen=True)
class Cached(Objective):
    """Objective of a search: the validation accuracy of a cached training."""

    cache: Cache
    name: str
    seed: int

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """The cached accuracy; the genotype is trained if it is not in the cache."""
        yield from ()
        score, test, seconds = self.cache.trained(self.name, genotype, self.seed)
        return ObjectiveValue(score, {"test": test, "seconds": seconds})

    def settings(self) -> Mapping[str, Any]:
        """Task and seed."""
        return {"task": self.name, "seed": self.seed}


def run(searcher: Sampling, seed: int, evaluations: int = EVALUATIONS) -> list[Step]:
    """Run a search until its budget or its space is used up."""
    state = searcher.init(seed)
    while len(state.records) < evaluations and not searcher.ended(state):
        state = finish(searcher.step(state))
    return [
        Step(
            str(r.genotype),
            r.score,
            float(r.facts.get("test", 0)),
            float(r.facts.get("seconds", 1)),
            str(r.facts["origin"]),
        )
        for r in state.records
    ]


def cells(kept: Cache, source: str) -> tuple[Genotype, ...]:
    """The cells that `nearkin add --cell` would store for a task: the best of an evolution in the general space."""
    steps = run(evolution(SPACE, Cached(kept, source, CELL_SEED)), derived_seed(CELL_SEED, source), CELL_EVALUATIONS)
    return tuple(Genotype.parse(step.genotype) for step in sorted(steps, key=lambda step: -step.score)[:NUM_BEST])


def searched(kept: Cache, way: str, target: str, seed: int, source: str = "", replica: int = 0) -> list[Step]:
    """One search. Searches of one target and seed train a cell in the same way, and differ in their draws."""
    asked, draws = Cached(kept, target, seed), derived_seed(seed, way, target, source, replica)
    if way == NOTHING:
        return run(evolution(SPACE, asked), draws)
    genotypes = cells(kept, source)
    if way == KIN:
        return run(evolution(restrict_space(SPACE, genotypes), asked, first=genotypes), draws)
    if way == FREE:
        return run(warm_start_search(SPACE, asked, genotypes), draws)
    return run(random_search(restrict_space(SPACE, genotypes), asked), draws)


def distances(kept: Cache) -> dict[str, Any]:
    """Fréchet distance and `short-finetune` of all pairs in a zoo of LeNets, and the cost of one new target."""
    if "distances" in kept.rows:
        return dict(kept.rows["distances"])
    if kept.offline:
        raise Missing("distances")
    with tempfile.TemporaryDirectory() as folder, nk.Zoo(Path(folder) / "zoo") as zoo:
        start = time.process_time()
        for name in DATA:
            zoo.add(task_named(name), "lenet", trials=TRIALS)
        spent = {"solve": (time.process_time() - start) / len(DATA)}
        results: dict[str, Any] = {}
        for measure in ("frechet", "kin"):
            start = time.process_time()
            matrix = zoo.matrix(list(DATA), measure)
            spent[measure] = (time.process_time() - start) / len(DATA)
            results[measure] = {"mean": matrix.mean.tolist(), "std": matrix.std.tolist(), "form": matrix.form}
    return dict(kept.keep("distances", {**results, "seconds_a_target": spent}))


def measured_again(folder: Path) -> None:
    """Measure the distances of the shipped trials again, in the default form; gains do not change."""
    with nk.Zoo(folder) as zoo:
        for name in DATA:
            if name not in zoo:
                zoo.add(task_named(name), "lenet", trials=TRIALS)
        matrix = zoo.matrix(list(DATA), "frechet")
    mean = matrix.mean.tolist()
    places = {name: index for index, name in enumerate(matrix.tasks)}
    results = [
        replace(trial, distance=round(mean[places[trial.source]][places[trial.target]], 4), form=matrix.form)
        for trial in shipped()
    ]
    ship(results)
    print(threshold(results, matrix.form).words())


def ship(trials_to_ship: Sequence[Trial]) -> None:
    """Write the trials that come with the package."""
    facts = {"made_by": "benchmarks/kin_start.py", "trials": [trial.to_dict() for trial in trials_to_ship]}
    SHIPPED.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def ordered_pairs() -> Iterator[tuple[str, str]]:
    """Pairs of source and target, ordered so that every target comes once before any comes twice."""
    names = list(DATA)
    for offset in range(1, len(names)):
        for index, target in enumerate(names):
            yield names[(index + offset) % len(names)], target


def pick(steps: Sequence[Step]) -> Step:
    return max(steps, key=lambda step: step.score)


def fresh(kept: Cache, target: str, steps: Sequence[Step]) -> float:
    """Test accuracy of the genotype that a search selected, averaged over trainings that the search did not use."""
    genotype = Genotype.parse(pick(steps).genotype)
    return statistics.fmean(kept.trained(target, genotype, seed)[1] for seed in FRESH_SEEDS)


def measured(kept: Cache) -> None:
    """All searches, the most important first."""
    start = time.perf_counter()

    def show(words: str) -> None:
        print(f"  {words}; {len(kept.rows)} kept, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)

    for name in DATA:
        show(f"cells of {name}: {cells(kept, name)[0]}")
    far = distances(kept)
    show(f"distances {far['seconds_a_target']}")
    for seed in SEEDS:
        for target, replica in itertools.product(DATA, (0, 1)):
            steps = searched(kept, NOTHING, target, seed, replica=replica)
            show(f"{target} from scratch: {pick(steps).score}, {fresh(kept, target, steps):.4f}")
        for source, target in ordered_pairs():
            steps = searched(kept, KIN, target, seed, source)
            show(f"{target} from {source}: {pick(steps).score}, {fresh(kept, target, steps):.4f}")
    for seed in SEEDS:
        for source, target in ends(far["frechet"]["mean"]):
            for way in (FREE, DRAWS):
                steps = searched(kept, way, target, seed, source)
                show(f"{target} from {source}, {way}: {pick(steps).score}, {fresh(kept, target, steps):.4f}")


def ends(distance: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """The nearest and the farthest source of every target."""
    names, pairs = list(DATA), []
    for index, target in enumerate(names):
        order = sorted((row[index], name) for row, name in zip(distance, names, strict=True) if name != target)
        pairs += [(order[0][1], target), (order[-1][1], target)]
    return pairs


# What came of it


def reached(values: Sequence[float], spent: Sequence[float], level: float) -> float:
    """Cost after which the values stay at or above a level; infinite if they never do."""
    short = [index for index, value in enumerate(values) if value < level]
    after = short[-1] + 1 if short else 0
    return spent[after] if after < len(values) else math.inf


@dataclass(frozen=True)
class Curve:
    """Course of a search: both accuracies of the best genotype after each evaluation, and the seconds so far."""

    score: tuple[float, ...]
    test: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Curve":
        """The course of a search from its evaluations."""
        picks = [pick(steps[: count + 1]) for count in range(len(steps))]
        seconds = itertools.accumulate(step.seconds for step in steps)
        return cls(tuple(item.score for item in picks), tuple(item.test for item in picks), tuple(seconds))

    def against(self, other: "Curve", by: str) -> dict[str, float]:
        """Cost to reach the result of another search, as a share of its total cost, and of its cost to that point."""
        mine, theirs = getattr(self, by), getattr(other, by)
        level, counts = theirs[-1], range(1, len(mine) + 1)
        seconds = reached(mine, self.seconds, level)
        return {
            "time": seconds / other.seconds[-1],
            "time_to_there": seconds / reached(theirs, other.seconds, level),
            "evaluations": reached(mine, tuple(counts), level) / len(theirs),
        }


def collected(kept: Cache) -> list[dict[str, Any]]:
    """A row for each search from a kin (or from scratch, as a control), compared with each search from scratch."""
    far, names, rows = distances(kept), list(DATA), []
    nearness = {measure: far[measure]["mean"] for measure in ("frechet", "kin")}
    for seed, (source, target) in itertools.product(SEEDS, [*((name, name) for name in DATA), *ordered_pairs()]):
        for way in (NOTHING,) if source == target else (KIN, FREE, DRAWS):
            for replica in (0, 1):
                try:
                    beside = searched(kept, NOTHING, target, seed, replica=replica)
                    again = {"replica": 1 - replica} if way == NOTHING else {"source": source}
                    mine = searched(kept, way, target, seed, **again)
                    gain = fresh(kept, target, mine) - fresh(kept, target, beside)
                except Missing:
                    continue
                index = names.index(source), names.index(target)
                rows.append({
                    "way": way, "source": source, "target": target, "seed": seed, "replica": replica,
                    **{measure: matrix[index[0]][index[1]] for measure, matrix in nearness.items()},
                    "gain": gain, "gain_seen": pick(mine).score - pick(beside).score,
                    "score": Curve.of(mine).against(Curve.of(beside), "score"),
                    "test": Curve.of(mine).against(Curve.of(beside), "test"),
                    "first": as_draws(mine[0], beside) if way == KIN else None,
                })  # fmt: skip
    asked = {KIN: list(ordered_pairs()), FREE: ends(nearness["frechet"]), DRAWS: ends(nearness["frechet"])}
    short = [
        way
        for way, pairs in asked.items()
        if way != KIN and sum(row["way"] == way for row in rows) < 2 * len(SEEDS) * len(pairs)
    ]
    return [row for row in rows if row["way"] not in short]  # some pairs of a way say nothing of it


def as_draws(step: Step, nothing: Sequence[Step]) -> float:
    """Expected number of random draws until one is as good on the test set."""
    drawn = [item.test for item in nothing if item.origin == DRAWN]
    return (len(drawn) + 1) / (sum(value >= step.test for value in drawn) + 1)


def spread(rows: Sequence[dict[str, Any]], figure: Callable[[Sequence[dict[str, Any]]], float]) -> dict[str, Any]:
    """A figure and its 95 % interval, by a bootstrap over targets."""
    by_target = [[row for row in rows if row["target"] == name] for name in DATA]
    by_target = [group for group in by_target if group]
    rng, values = Streams(0).numpy("bootstrap"), []
    for _ in range(1000):
        drawn = rng.integers(len(by_target), size=len(by_target))
        values.append(figure([row for number in drawn for row in by_target[number]]))
    low, high = np.quantile(values, (0.025, 0.975), method="nearest")
    return {"value": plain(figure(rows)), "low": plain(low), "high": plain(high), "count": len(rows)}


def plain(value: float) -> float | None:
    """The value for JSON: None if it is not finite."""
    return round(float(value), 4) if math.isfinite(value) else None


FIGURES: dict[str, Callable[[Sequence[dict[str, Any]]], float]] = {
    "median_time": lambda rows: statistics.median(row["score"]["time"] for row in rows),
    "median_time_to_there": lambda rows: statistics.median(row["score"]["time_to_there"] for row in rows),
    "median_evaluations": lambda rows: statistics.median(row["score"]["evaluations"] for row in rows),
    "reached": lambda rows: statistics.fmean(row["score"]["time"] < math.inf for row in rows),
    "reached_in_half": lambda rows: statistics.fmean(row["score"]["time"] <= 0.5 for row in rows),
    "test_reached": lambda rows: statistics.fmean(row["test"]["time"] < math.inf for row in rows),
    "test_reached_in_half": lambda rows: statistics.fmean(row["test"]["time"] <= 0.5 for row in rows),
    "gain": lambda rows: statistics.fmean(row["gain"] for row in rows),
    "gain_seen": lambda rows: statistics.fmean(row["gain_seen"] for row in rows),
}


def near_by_frechet(paired: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """Whether a distance is at most the median of all distances."""
    middle = statistics.median(row["frechet"] for row in paired)
    return lambda row: bool(row["frechet"] <= middle)


def near_by_kin(paired: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """Whether a value is at most the median of its target: values of different targets have different scales."""
    middle = {
        t: statistics.median(row["kin"] for row in paired if row["target"] == t)
        for t in {row["target"] for row in paired}
    }
    return lambda row: bool(row["kin"] <= middle[row["target"]])


def groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows by method, and by distance: up to the median and above it."""
    results = {"from nothing again": [row for row in rows if row["way"] == NOTHING]}
    paired = [row for row in rows if row["way"] == KIN]
    results["all kin"] = paired
    for word, near in (("Fréchet", near_by_frechet(paired)), ("`short-finetune`", near_by_kin(paired))):
        results[f"near by {word}"] = [row for row in paired if near(row)]
        results[f"far by {word}"] = [row for row in paired if not near(row)]
    compared = {(row["source"], row["target"], row["seed"]) for row in rows if row["way"] == FREE}
    for way in (KIN, FREE, DRAWS):
        some = [row for row in rows if row["way"] == way and (row["source"], row["target"], row["seed"]) in compared]
        if some:
            results[f"{way}, nearest and farthest only"] = some
    return {name: group for name, group in results.items() if group}


def trials(rows: Sequence[dict[str, Any]], form: str) -> list[Trial]:
    """Trials from which the threshold is learned: the mean gain of each pair over seeds and searches from scratch."""
    results = []
    for source, target in ordered_pairs():
        some = [row for row in rows if (row["way"], row["source"], row["target"]) == (KIN, source, target)]
        if some:
            gain = statistics.fmean(row["gain"] for row in some)
            results.append(Trial(source, target, round(some[0]["frechet"], 4), round(gain, 5), form=form))
    return results


# On tables


class Remembered(Space):
    """A space that caches the neighbours of each genotype."""

    def __init__(self, space: Space) -> None:
        self.space, self.known = space, dict[Genotype, tuple[Genotype, ...]]()

    @property
    def name(self) -> str:
        """As it was."""
        return self.space.name

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """As they were."""
        if genotype not in self.known:
            self.known[genotype] = self.space.neighbours(genotype)
        return self.known[genotype]

    def size(self) -> int:
        """As it was."""
        return self.space.size()

    def at(self, index: int) -> Genotype:
        """As it was."""
        return self.space.at(index)

    def objection(self, genotype: Genotype) -> str:
        """As it was."""
        return self.space.objection(genotype)

    def unique_key(self, genotype: Genotype) -> str:
        """As it was."""
        return self.space.unique_key(genotype)


def on_tables(folder: Path) -> list[dict[str, Any]]:
    """Queries to reach the result of 100 queries from scratch, for all ordered pairs of tasks of a table."""
    rows, whole = [], {}
    asked = questions(folder)
    for question, seed in itertools.product(asked, range(TABLE_SEEDS)):
        for name, make in (("random", random_search), ("evolution", evolution)):
            draws = derived_seed(seed, "table", question.name, name)
            whole[question.name, name, seed] = run(make(question.table.space, question.objective()), draws, QUERIES)
    for source, target in itertools.permutations(asked, 2):
        if source.table is not target.table:
            continue
        kinship = float(spearmanr(*(group.table.column(group.seen) for group in (source, target))).statistic)
        for seed in range(TABLE_SEEDS):
            steps = whole[source.name, "evolution", (seed + 1) % TABLE_SEEDS]  # its own luck, not the target's
            best = sorted(steps, key=lambda step: -step.score)[:NUM_BEST]
            genotypes = tuple(Genotype.parse(step.genotype) for step in best)
            space, objective = target.table.space, target.objective()
            ways = {
                KIN: evolution(Remembered(restrict_space(space, genotypes)), objective, first=genotypes),
                FREE: warm_start_search(space, objective, genotypes),
                "evolution": None,
            }
            for way, searcher in ways.items():
                if searcher is None:  # the control: another search from scratch
                    mine = whole[target.name, "evolution", (seed + 1) % TABLE_SEEDS]
                else:
                    mine = run(searcher, derived_seed(seed, "table", way, source.name, target.name), QUERIES)
                scores = list(itertools.accumulate((step.score for step in mine), max))
                for name in ("random", "evolution"):
                    level = max(step.score for step in whole[target.name, name, seed])
                    queries = reached(scores, range(1, len(scores) + 1), level)
                    rows.append({
                        "way": way, "beside": name, "source": source.name, "target": target.name, "seed": seed,
                        "kinship": kinship, "queries": queries,
                    })  # fmt: skip
        print(f"  {target.name} from {source.name}, rank correlation {kinship:.2f}", file=sys.stderr, flush=True)
    return rows


def table_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method, reference and distance: median queries over pairs, and the share of pairs that need half."""
    pairs = {(row["source"], row["target"]): row["kinship"] for row in rows}
    middle, results = statistics.median(pairs.values()), []
    for way, beside in itertools.product((KIN, FREE, "evolution"), ("random", "evolution")):
        for nearness in NEARNESS:
            of_pair: dict[tuple[str, str], list[float]] = {}
            for row in rows:
                if (row["way"], row["beside"]) == (way, beside) and (row["kinship"] >= middle) == (nearness == "near"):
                    of_pair.setdefault((row["source"], row["target"]), []).append(row["queries"])
            medians = [statistics.median(values) for values in of_pair.values()]
            results.append({
                "way": way, "beside": beside, "kin": nearness, "pairs": len(medians),
                "median_queries": plain(statistics.median(medians)),
                "pairs_in_half": sum(value <= QUERIES / 2 for value in medians),
                "searches_in_half": plain(statistics.fmean(
                    value <= QUERIES / 2 for values in of_pair.values() for value in values)),
            })  # fmt: skip
    return results


# The page


def share(interval: dict[str, Any]) -> str:
    return f"{100 * interval['value']:.0f} % ({100 * interval['low']:.0f} to {100 * interval['high']:.0f})"


def ratio(interval: dict[str, Any]) -> str:
    """A ratio with its interval; None means that a search did not reach the level."""
    texts = ["never" if interval[key] is None else f"{interval[key]:.2f}" for key in ("value", "low", "high")]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


def points(interval: dict[str, Any]) -> str:
    return f"{100 * interval['value']:+.1f} ({100 * interval['low']:+.1f} to {100 * interval['high']:+.1f})"


def remarks(figures: dict[str, Any]) -> str:
    """Text of the page: the claim, what was shown and what was not, and changes during the experiment."""
    group, first = figures["groups"], figures["first_cell"]
    again, kin, near, far = (
        group[name] for name in ("from nothing again", "all kin", "near by Fréchet", "far by Fréchet")
    )
    of = {(row["way"], row["beside"], row["kin"]): row for row in figures["tables"]}
    by = {(beside, nearness): of[KIN, beside, nearness] for beside in ("random", "evolution") for nearness in NEARNESS}
    texts = {key: f"{row['median_queries']:g}" if row["median_queries"] else "never" for key, row in by.items()}
    beyond = figures["threshold"]["num_above"]
    ends = {name: values[-1] for name, values in figures["curves"].items()}
    return f"""## What was shown, and what was not

The claim was: a search from the kin's cells reaches the accuracy of a search from scratch in at most half of its time.

- **Not shown on trained cells.** Searches from near kin reached it in half of the time in
  {share(near["reached_in_half"])} of the comparisons, from far kin in {share(far["reached_in_half"])}, from all kin in
  {share(kin["reached_in_half"])}. A second search from scratch did so in {share(again["reached_in_half"])}. The median
  time is {ratio(near["median_time"])} for near kin and {ratio(far["median_time"])} for far kin.
- The cells that searches from kin selected were better when they were trained again, by {points(kin["gain"])} points,
  although these searches had not reached the validation accuracy. With {EVALUATIONS} cells and 250 validation images,
  the best validation accuracy is partly luck. By the test accuracy during the searches, the curves of the picture
  hardly differ: {100 * ends["near kin"]:+.1f} points at the end for near kin and {
        100 * ends["far kin"]:+.1f} for far kin. Six
  targets are few for a bootstrap, so the interval is probably too narrow.
- Near kin gained no more than far kin: {points(near["gain"])} and {points(far["gain"])} points; rank correlation of
  distance and gain {figures["threshold"]["trend"]:+.2f}.
- Random search needs {first["all"]:.1f} draws until a cell is as good as the kin's best cell. This count cannot exceed
  11.
- In this setting of small searches, ranking the kin took longer than a search from scratch.
- **Shown on tables for near kin**: {texts["random", "near"]} queries in the median to reach random search at
  {QUERIES}, and {texts["evolution", "near"]} to reach evolution at {QUERIES}; half of the queries was enough in
  {by["evolution", "near"]["pairs_in_half"]} of {by["evolution", "near"]["pairs"]} pairs. For far kin it was
  {texts["random", "far"]} and {texts["evolution", "far"]}: half of the queries of random search, but not of evolution.
  Evolution from scratch also reaches random search in half of the queries. The cost of the kin's own search is not
  counted.

**How far to trust it.** Eight tasks, 24 evaluations, several training seeds, and the methods `kin` and random search in
the kin's space were planned for trained cells. To save time there are six tasks (the two others were easy, as a trial
of eight cells had shown), {EVALUATIONS} evaluations and one seed. This was decided before any search from a kin. The
two further methods were dropped later and were not measured on trained cells. The tables have {
        TABLE_SEEDS
    } seeds instead of
30, after a trial with two. That "near" by `short-finetune` is defined within a target was decided after the distances
were known, but before any search from a kin. The threshold depends on {beyond} trial{
        "s" if beyond != 1 else ""
    } above it, whose loss is about the difference
of two searches from scratch, {100 * figures["noise"]:.1f} points. If it counted as a tie, all distances would be near.
Totals that differ by less than one point count as ties. Five points were tried after the first ten pairs and rejected:
the threshold is the same, and its interval would look too narrow. The machine had other work: process time of the same
training varied by a factor of two, so evaluations are the more reliable count.
"""


def page(figures: dict[str, Any]) -> str:
    rows = [
        [
            name.replace("from nothing", "from scratch").replace("`kin`", "`short-finetune`"),
            str(group["gain"]["count"]),
            ratio(group["median_time"]),
            ratio(group["median_evaluations"]),
            share(group["reached"]),
            share(group["reached_in_half"]),
            share(group["test_reached_in_half"]),
            points(group["gain"]),
        ]
        for name, group in figures["groups"].items()
    ]
    head = ["search", "comparisons", "time", "evaluations", "reached", "in half the time", "the same on test",
            "gain, points"]  # fmt: skip
    tabled = [
        [
            row["way"] if row["way"] != "evolution" else "evolution from scratch again",
            f"{row['beside']} at {QUERIES}",
            row["kin"] if row["way"] != "evolution" else f"(targets of {row['kin']})",
            str(row["pairs"]),
            "never" if row["median_queries"] is None else f"{row['median_queries']:g}",
            f"{row['pairs_in_half']} of {row['pairs']}",
            f"{100 * row['searches_in_half']:.0f} %",
        ]
        for row in figures["tables"]
    ]
    learned, first = figures["threshold"], figures["first_cell"]
    spent = figures["distances"]["seconds_a_target"]
    free = any(name.startswith(FREE) for name in figures["groups"])
    others = OTHERS if free else ""
    listed = "\n".join(f"- {name}: `{data}`" for name, data in DATA.items())
    return f"""# Starting from a kin's cells

Made by `python benchmarks/kin_start.py`; one thread, process time.

## What was done

{len(DATA)} tasks, each the target of all others, {len(SEEDS)} training seed{"s" if len(SEEDS) > 1 else ""}:

{listed}

The network has a stem to 7x7 pixels, 8 channels, two cells with a pool between them, and the mean over the map. A cell
is trained for {
        PROXY.steps
    } steps on 1,000 images, and its validation accuracy on 250 other images is the score that a search
uses. A search has {EVALUATIONS} evaluations. *From scratch* is regularised evolution in the general space, twice for
every target with different random draws. *Kin's space* is what `nearkin search --method evolution --space KIN` does: it
starts from the {NUM_BEST} best cells that {
        CELL_EVALUATIONS
    } evaluations gave for the kin, and uses only their structures
and operations. {others}All searches of a target train a cell in the same way; the kin's cells come from other seeds.

A kin is near if its distance is at most the median of the {figures["pairs"]} Fréchet distances
(`{figures["distances"]["frechet"]["form"]}`, LeNet, {
        TRIALS
    } trials), otherwise far. Values of `short-finetune` cannot be
compared between targets, so its median is taken over the target's own sources. The times below do **not** include the
ranking of kin: {spent["solve"]:.0f} s of process time for a target's {TRIALS} LeNets, then {spent["frechet"]:.1f} s for
the Fréchet distances or {spent["kin"]:.1f} s for `short-finetune`. A search from scratch takes
{figures["seconds_from_nothing"]:.0f} s.

## Time to reach the result of a search from scratch

Each search is compared with both searches from scratch for its target.

- *Time*: the median time until its best validation accuracy is the final one of the search from scratch, as a share of
  that search's total time. *Evaluations*: the same in evaluations.
- *The same on test*: in half of the time its best cell has the test accuracy of the cell that the search from scratch
  selected, and keeps it to the end.
- *Gain*: test accuracy of the selected cell, trained again from {
        len(FRESH_SEEDS)
    } other seeds, minus that of the search
  from scratch.

In brackets are 95 % intervals by a bootstrap over targets. The first row is the control: one search from scratch
compared with the other. One of the two always reaches the other, and gains are zero on average.

{table(head, rows)}

![Gain by distance, and accuracy by evaluations](kin-start.svg)

Random search in the general space needs {
        first["all"]:.1f} draws in the median until a cell has the test accuracy of the
kin's best cell ({first["near"]:.1f} for near kin, {first["far"]:.1f} for far kin).

## The threshold

{figures["words"]}

`nearkin solve` learns the threshold again from these {learned["num_below"] + learned["num_above"]} trials
(`src/nearkin/solver/trials.json`) and those of the zoo itself. Two searches from scratch differ by
{100 * figures["noise"]:.1f} points (root mean square).

## On tables

NAS-Bench-201 and TransNAS-Bench-101 (micro), all ordered pairs of tasks of a table, {
        TABLE_SEEDS
    } seeds. The kin's cells
are the {NUM_BEST} best of an evolution with {QUERIES} queries. *Queries*: the number of queries until a search has the
value that the search from scratch had after {QUERIES}; the median over seeds, then over pairs. A table has no networks
with which distances could be measured. So a pair is near if the rank correlation of its columns is at least the median
of all pairs; a user would not know this value.

{
        table(
            ["search", "to reach", "kin", "pairs", "queries", "pairs within half", "searches within half"],
            tabled,
        )
    }

{remarks(figures)}"""


OTHERS = """*Kin, free* is the method `kin`; *draws in kin's space* is random search there, without the kin's cells.
Both were run only from the nearest and the farthest kin of every target. """


def plot(rows: Sequence[dict[str, Any]], curves: dict[str, list[float]], border: float, file: Path) -> None:
    """Picture of the gains by distance, and of the accuracy over evaluations."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearkin", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for number, target in enumerate(DATA):
        some = [trial for trial in trials(rows) if trial.target == target]
        places = [trial.distance for trial in some], [100 * trial.gain for trial in some]
        left.plot(*places, "osD^vPX*"[number], color=COLOURS[number], markersize=5, label=f"to {target}")
    left.axhline(0, color="black", linewidth=0.6)
    left.axvline(border, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel="Fréchet distance (dotted: the threshold)", ylabel="gain over a search from scratch, points")
    left.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    for (name, values), style in zip(curves.items(), ("-", "-", "--"), strict=True):
        right.plot(range(1, len(values) + 1), [100 * value for value in values], style, label=name,
                   color=CURVES[name])  # fmt: skip
    right.set(
        xlabel="evaluations", ylabel="test accuracy of the best cell, points\nabove the end of a search from scratch"
    )
    right.set_xticks(range(0, EVALUATIONS + 1, 5))
    right.set_ylim(bottom=max(-12, right.get_ylim()[0]))
    right.legend(frameon=False, loc="lower right")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def curves(kept: Cache, rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Mean test accuracy of the best genotype after each evaluation, minus that at the end of searches from scratch."""
    near = near_by_frechet([row for row in rows if row["way"] == KIN])
    results: dict[str, list[list[float]]] = {"near kin": [], "far kin": [], NOTHING: []}
    for row in rows:
        if row["way"] not in (KIN, NOTHING):
            continue
        target, seed, mine = row["target"], row["seed"], row["way"] == NOTHING
        ends = [Curve.of(searched(kept, NOTHING, target, seed, replica=replica)).test[-1] for replica in (0, 1)]
        which = {"replica": row["replica"]} if mine else {"source": row["source"]}
        steps = searched(kept, row["way"], target, seed, **which)
        test = list(Curve.of(steps).test)
        test += [test[-1]] * (EVALUATIONS - len(test))
        name = NOTHING if mine else "near kin" if near(row) else "far kin"
        results[name].append([value - statistics.fmean(ends) for value in test])
    return {name: [statistics.fmean(column) for column in zip(*group, strict=True)] for name, group in results.items()}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "kin_start_cache.jsonl")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--tables", type=Path, default=ROOT.parent / "shared" / "tables")
    parser.add_argument("--distances", type=Path, help="measure the distances of the shipped trials again")
    arguments = parser.parse_args()
    if arguments.distances:
        measured_again(arguments.distances)
        return
    kept = Cache(arguments.cache, arguments.offline)
    if not arguments.offline:
        measured(kept)
    rows = collected(kept)
    form = distances(kept)["frechet"]["form"]
    results = trials(rows, form)
    learned = threshold(results, form)
    paired = [row for row in rows if row["way"] == KIN]
    again = [row for row in rows if row["way"] == NOTHING]
    near = near_by_frechet(paired)
    tabled = kept.rows.get("tables") or kept.keep("tables", table_summary(on_tables(arguments.tables)))
    nothing = [searched(kept, NOTHING, row["target"], row["seed"], replica=row["replica"]) for row in again]
    figures: dict[str, Any] = {
        "tasks": DATA,
        "evaluations": EVALUATIONS,
        "pairs": len(results),
        "groups": {
            name: {key: spread(group, figure) for key, figure in FIGURES.items()}
            for name, group in groups(rows).items()
        },
        "first_cell": {
            "all": round(statistics.median(row["first"] for row in paired), 2),
            "near": round(statistics.median(row["first"] for row in paired if near(row)), 2),
            "far": round(statistics.median(row["first"] for row in paired if not near(row)), 2),
        },
        "seconds_from_nothing": round(statistics.fmean(Curve.of(steps).seconds[-1] for steps in nothing), 1),
        "noise": round(math.sqrt(statistics.fmean(row["gain"] ** 2 for row in again)), 4),
        "distances": distances(kept),
        "threshold": learned.to_dict(),
        "words": learned.words(),
        "tables": tabled,
        "curves": {name: [round(value, 5) for value in group] for name, group in curves(kept, rows).items()},
        "comparisons": [
            {**row, **{by: {name: plain(value) for name, value in row[by].items()} for by in ("score", "test")}}
            for row in rows
        ],
    }
    ship(results)
    plot(rows, figures["curves"], learned.value, PAGE.with_suffix(".svg"))
    PAGE.write_text(page(figures))
    print(PAGE.read_text())
    print(f"kept in {keep(__file__, figures)}, {PAGE.name} and {SHIPPED.name}")


if __name__ == "__main__":
    main()
