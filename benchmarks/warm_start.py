"""Warm start from every other task of a table, compared with evolution without kin and evolution from the kin's cells.

    python benchmarks/warm_start.py [FOLDER]
    python benchmarks/warm_start.py --page

FOLDER holds `nb201.csv.gz` and `tnb101_micro.csv.gz`; without it, `tables` beside the real data sets. `--page` writes
the page from the stored figures. Queries and regrets are those of `benchmarks/tables.py`.

Design and options of `warm-start` were chosen on pairs whose target has an even SHA-256 digest, with seeds 0 to 99 and
2000 to 2199. The figures here use other seeds, and the other pairs were not used for the choice.
"""

import hashlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.search.methods.evolution import evolution
from nearkin.search.methods.warm_start import warm_start_search
from results import keep, table
from tables import Question, questions, regrets

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures" / "warm-start.md"
QUERIES = (10, 50, 200)
FIRST_SEED, SEEDS, KIN_CELLS, FOUNDERS = 3000, 100, 10, 5
BOUND = 1.05
RESAMPLES = 2_000


def held_out(target: str) -> bool:
    """Whether a target was not used to choose the design."""
    return int(hashlib.sha256(target.encode()).hexdigest(), 16) % 2 == 1


def measure(question: Question, searcher: Any) -> np.ndarray:
    """Regrets `[seed, queries]`."""
    best = question.table.best(question.judged)
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    return np.array([regrets(question, searcher, seed, QUERIES, best) for seed in seeds])


def every_pair(asked: list[Question]) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Regrets of the three methods for all ordered pairs of tasks of one table."""
    plain: dict[str, np.ndarray] = {}
    pairs = {}
    for kin, target in itertools.permutations(asked, 2):
        if kin.table is not target.table:
            continue
        space, objective = target.table.space, target.objective()
        if target.name not in plain:
            plain[target.name] = measure(target, evolution(space, objective))
        cells = kin.table.top(kin.seen, KIN_CELLS)
        pairs[kin.name, target.name] = {
            "evolution": plain[target.name],
            "founded": measure(target, evolution(space, objective, first=cells[:FOUNDERS])),
            "warm-start": measure(target, warm_start_search(space, objective, cells)),
        }
        print(f"  {kin.name} to {target.name}, {time.process_time():.0f} s", flush=True)
    return pairs


def summarise(pairs: dict[tuple[str, str], dict[str, np.ndarray]]) -> dict[str, Any]:
    """Means, ratios to the better of the two others and to evolution, with 95 % intervals from resampled seeds."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(SEEDS, size=(RESAMPLES, SEEDS))
    means = {pair: {name: values[drawn].mean(1) for name, values in ways.items()} for pair, ways in pairs.items()}
    by_pair = []
    for (kin, target), ways in pairs.items():
        mean = {name: values.mean(0) for name, values in ways.items()}
        better = np.minimum(mean["evolution"], mean["founded"])
        lower = np.where(mean["evolution"] <= mean["founded"], 0, 1)
        resampled = np.stack([means[kin, target]["evolution"], means[kin, target]["founded"]])
        resampled = np.take_along_axis(resampled, lower[None, None, :], 0)[0]
        ratios = quotient(means[kin, target]["warm-start"], resampled)
        by_pair.append({
            "kin": kin,
            "target": target,
            "held_out": held_out(target),
            **{name: plain(values) for name, values in mean.items()},
            "ratio": plain(quotient(mean["warm-start"], better)),
            "interval": [plain(np.quantile(ratios, level, axis=0)) for level in (0.025, 0.975)],
            "excess": plain(mean["warm-start"] - better),
        })  # fmt: skip
    groups = {"all": list(pairs), "held out": [pair for pair in pairs if held_out(pair[1])]}
    averages = {group: {way: average(pairs, means, members, way) for way in ("founded", "warm-start")}
                for group, members in groups.items()}  # fmt: skip
    return {"pairs": by_pair, "averages": averages, "halves": misses_by_half(pairs)}


def misses_by_half(pairs: dict[tuple[str, str], dict[str, np.ndarray]]) -> dict[str, int]:
    """Number of misses of `warm-start`, and of the better of the two others itself, on half of the seeds.

    Both are compared with the better one on the other half. What the better one misses is noise.
    """
    misses = {"warm-start": 0, "better": 0}
    for ways in pairs.values():
        first = {name: values[: SEEDS // 2].mean(0) for name, values in ways.items()}
        second = {name: values[SEEDS // 2 :].mean(0) for name, values in ways.items()}
        evolution_is_better = ways["evolution"].mean(0) <= ways["founded"].mean(0)
        bound = np.where(evolution_is_better, first["evolution"], first["founded"])
        again = np.where(evolution_is_better, second["evolution"], second["founded"])
        misses["warm-start"] += int((quotient(second["warm-start"], bound) > BOUND).sum())
        misses["better"] += int((quotient(again, bound) > BOUND).sum())
    return misses


def average(pairs: Any, means: Any, members: list[tuple[str, str]], way: str) -> dict[str, Any]:
    """Mean over pairs of the regret divided by that of evolution."""
    value = np.mean([pairs[pair][way].mean(0) / pairs[pair]["evolution"].mean(0) for pair in members], 0)
    resampled = np.mean([means[pair][way] / means[pair]["evolution"] for pair in members], 0)
    return {
        "mean": plain(value),
        "interval": [plain(np.quantile(resampled, level, axis=0)) for level in (0.025, 0.975)],
    }


def quotient(mine: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Quotient of regrets; 1 if both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((mine <= 1e-9) & (others <= 1e-9), 1.0, mine / np.maximum(others, 1e-9))


def plain(values: np.ndarray) -> list[float]:
    return [round(float(value), 5) for value in values]


# The page


def short(value: float) -> str:
    return ">99" if value > 99 else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3g}"


def average_rows(figures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for group, ways in figures["averages"].items():
        for way, results in ways.items():
            low, high = results["interval"]
            cells = [f"{m:.2f} ({a:.2f} to {b:.2f})" for m, a, b in zip(results["mean"], low, high, strict=True)]
            rows.append([f"{group} pairs", way, *cells])
    return rows


def miss_rows(figures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for group, members in (
        ("development", [pair for pair in figures["pairs"] if not pair["held_out"]]),
        ("held out", [pair for pair in figures["pairs"] if pair["held_out"]]),
        ("all", figures["pairs"]),
    ):
        for position, queries in enumerate(QUERIES):
            ratios = sorted(pair["ratio"][position] for pair in members)
            missed = sum(ratio > BOUND for ratio in ratios)
            clear = sum(pair["interval"][0][position] > BOUND for pair in members)
            median = float(np.median(ratios))
            rows.append([group, str(queries), f"{missed} of {len(members)}", str(clear), short(median),
                         " / ".join(map(short, ratios[:-4:-1]))])  # fmt: skip
    return rows


def _name(pair: dict[str, Any]) -> str:
    return f"{pair['kin']} to {pair['target']}"


def excess_rows(figures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for position, queries in enumerate(QUERIES):
        shares = sorted(
            (pair["excess"][position] / pair["evolution"][0], pair["excess"][position], _name(pair))
            for pair in figures["pairs"]
        )
        values = [share for share, _, _ in shares]
        largest = [f"{name} {share:.1%} ({excess:.3g})" for share, excess, name in shares[:-4:-1]]
        rows.append([str(queries), f"{np.mean(values):+.1%}", str(sum(value > 0.01 for value in values)),
                     str(sum(value > 0.05 for value in values)), "; ".join(largest)])  # fmt: skip
    return rows


def pair_rows(figures: dict[str, Any]) -> list[list[str]]:
    rows = []
    for pair in figures["pairs"]:
        regret = [" / ".join(map(short, pair[name])) for name in ("evolution", "founded", "warm-start")]
        low, high = pair["interval"]
        ratios = [f"{'**' if r > BOUND else ''}{short(r)}{'**' if r > BOUND else ''} ({short(a)} to {short(b)})"
                  for r, a, b in zip(pair["ratio"], low, high, strict=True)]  # fmt: skip
        name = f"{_name(pair)}{' (held out)' if pair['held_out'] else ''}"
        rows.append([name, *regret, " / ".join(ratios)])
    return rows


def page(figures: dict[str, Any]) -> str:
    every = [(ratio, low) for pair in figures["pairs"]
             for ratio, low in zip(pair["ratio"], pair["interval"][0], strict=True)]  # fmt: skip
    missed, clear = sum(ratio > BOUND for ratio, _ in every), sum(low > BOUND for _, low in every)
    means = figures["averages"]["all"]
    ours = " / ".join(f"{value:.2f}" for value in means["warm-start"]["mean"])
    theirs = " / ".join(f"{value:.2f}" for value in means["founded"]["mean"])
    first, last = figures["seeds"][0], figures["seeds"][1]
    halves = figures["halves"]
    return f"""# Warm start that divides its queries

Made by `python benchmarks/warm_start.py` (about {figures["process_seconds"] // 60 + 1} minutes of one core); seeds
{first} to {last}, all {len(figures["pairs"])} ordered pairs of tasks of one table, queries and regrets as in
[search on tables](tables-benchmark.md).

**Claim.** The regret of `warm-start` after 10, 50 and 200 queries is at most {BOUND} × the better of evolution without
kin and *founded* evolution, whose first population is the kin's {FOUNDERS} best cells and {FOUNDERS} draws (this was
`warm-start` before); and on average over pairs it is lower than both.

**Result.** The average holds as a point estimate:
the regret divided by that of evolution without kin is {ours} after 10 / 50 / 200
queries, and {theirs} for founded evolution. The bound of every pair does not: it is missed in {missed} of {len(every)}
cases (pair and number of queries), in {clear} of them by more than the noise of the seeds, that is with a 95 % interval
above {BOUND}.

`warm-start` gets the kin's {KIN_CELLS} best cells. Its design and options were chosen on pairs whose target has an even
SHA-256 digest, with seeds 0 to 99 and 2000 to 2199. *Held-out* pairs had no part in that choice. Intervals are 95 %,
from {RESAMPLES:,} resamples of the seeds; with so few seeds they are wide.

This is the third run that includes held-out pairs:

| run | seeds | missed | clearly | averages | program |
| --- | --- | --- | --- | --- | --- |
| first | 1000 to 1099 | 29 | 17 | 0.55 / 0.64 / 0.48 | a fault: the first genotype was a credit of 0 for the kin |
| second | 1100 to 1119 | 26 | 11 | 0.56 / 0.70 / 0.49 | without the fault; parents: best of all or of the latest ten |
| third | {first} to {last} | {missed} | {clear} | {ours} | opening of six; parents by their upper confidence bound |

The figures of the second run were known when the third program was written, those of held-out pairs too; rules were
compared only on development pairs. Two starts of the third run (100 and 40 seeds) were stopped after 10 and 28 pairs,
before any regret was printed or stored, because the machine was busy.

## Why the bound is missed

- **Noise.** A control knows which of the two others is better in each case and uses it on half of the seeds. Compared
  with the same method on the other half, it misses the bound in {halves["better"]} of {len(every)} cases. In the same
  comparison `warm-start` misses it in {halves["warm-start"]}.
- **A regret of 0.** If the kin's third to fifth cell is the best of the table, founded evolution has a regret of 0
  after 10 queries, and no ratio to it is finite.
- **Validation and test.** On NAS-Bench-201 a search sees validation accuracies. For the targets imagenet16 and cifar10
  the kin's cells can have a better test accuracy than the cell with the best validation accuracy: there the regret of
  founded evolution grows with the number of queries, and a search that finds that cell sooner has the larger regret.

## Average over pairs

Regret ÷ regret of evolution without kin, after 10, 50 and 200 queries.

{table(["pairs", "method", *(f"{queries} queries" for queries in QUERIES)], average_rows(figures))}

## Pairs above the bound

*Missed*: ratio to the better of the two others above {BOUND}. *Clearly*: the whole interval above it. A regret of 0 in
the better one makes any other regret a miss with a ratio > 99.

{table(["pairs", "queries", "missed", "clearly", "median ratio", "largest ratios"], miss_rows(figures))}

## Excess regret

Regret of `warm-start` minus that of the better of the two others, divided by the regret of evolution after 10 queries
on the target: 1 % is a hundredth of what ten random draws lose. A ratio to a regret near 0 says little; this share does
not depend on it. In parentheses the excess in the unit of the table (accuracy in %, SSIM, or loss for room_layout).

{table(["queries", "mean", "pairs above 1 %", "pairs above 5 %", "largest"], excess_rows(figures))}

## Every pair

Mean regret after 10 / 50 / 200 queries, and the ratio of `warm-start` to the better of the two others with its
interval; ratios above {BOUND} are bold.

{table(["pair", "evolution", "founded", "warm-start", "ratio to the better"], pair_rows(figures))}
"""


def main() -> None:
    stored = Path(__file__).with_suffix(".json")
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(page(json.loads(stored.read_text())))
        return
    data = os.environ.get("NEARKIN_DATA", "")
    beside = (Path(data).expanduser().parent if data else ROOT.parent / "shared") / "tables"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else beside
    figures: dict[str, Any] = {"seeds": [FIRST_SEED, FIRST_SEED + SEEDS - 1], "queries": list(QUERIES)}
    figures |= summarise(every_pair(questions(folder)))
    figures["process_seconds"] = round(time.process_time())
    PAGE.write_text(page(figures))
    print(f"kept in {keep(__file__, figures)} and {PAGE.name}; {time.process_time():.0f} s of process time")


if __name__ == "__main__":
    main()
