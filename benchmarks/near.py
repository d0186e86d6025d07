"""Cost of ranking related tasks: one digits target and 5, 10 and 20 tasks of a zoo, by every measure.

    python benchmarks/near.py

The zoo is made of digit tasks with one trained LeNet each. Seconds are process time of `Zoo.near`; the Fréchet distance
includes the training of the target's own network, which is not in the zoo. `task2vec` is measured twice: first without
stored embeddings of the sources, then with them. Figures go to `benchmarks/near.json`, the table to
`docs/figures/near-benchmark.md`.
"""

import tempfile
import time
from pathlib import Path

import torch

import nearkin as nk
from nearkin.store import schema
from nearkin.zoo.comparison import EMBEDDING
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "near-benchmark.md"
COUNTS = (5, 10, 20)
RECIPE = nk.Recipe(steps=200)
DATA = [
    *(f"digits?detect={digit}" for digit in range(10)),
    *(f"digits?detect={digit},{digit + 5}" for digit in range(5)),
    *(
        "digits",
        "digits?parity",
        "digits?classes=0,1,2,3&rest=other",
        "digits?classes=5,6,7&rest=drop",
        "digits?invert",
    ),
]
KEPT = "task2vec, embeddings of sources kept"
TARGET = "digits?classes=1,4,7&rest=other"
MEASURES = (
    "short-finetune",
    "short-finetune-drawn",
    "logme",
    "leep",
    "nce",
    "hscore",
    "knn",
    "head",
    "gradnorm",
    "task2vec",
    "evidence",
    "cka",
    "mmd",
    "fid",
    "finetune",
    "frechet",
)


def main() -> None:
    torch.set_num_threads(1)
    seconds_of: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    with tempfile.TemporaryDirectory() as folder, nk.Zoo(Path(folder) / "zoo") as zoo:
        for number, data in enumerate(DATA, 1):
            zoo.add(nk.task(data, name=data), "lenet", trials=1, recipe=RECIPE)
            if number == 2:  # what torch imports at a first use is not the measure's
                for measure in MEASURES:
                    zoo.near(nk.task(TARGET, name="first"), measure)
            if number not in COUNTS:
                continue
            for measure in MEASURES:
                target = nk.task(TARGET, name=f"target {number}")  # another name: its network is trained again
                if measure == "task2vec":
                    forget_embeddings(zoo)
                seconds_of[measure][str(number)] = timed(zoo, target, measure)
                if measure == "task2vec":
                    seconds_of.setdefault(KEPT, {})[str(number)] = timed(zoo, target, measure)
    keep(__file__, {"target": TARGET, "process seconds by number of tasks": seconds_of})
    PAGE.write_text(page(seconds_of))


def timed(zoo: nk.Zoo, target: nk.Task, measure: str) -> float:
    """Process seconds of one ranking."""
    start = time.process_time()
    ranking = zoo.near(target, measure)
    seconds = round(time.process_time() - start, 2)
    print(f"{len(zoo)} tasks, {measure}: {seconds} s, nearest {ranking.nearest.name}", flush=True)
    return seconds


def forget_embeddings(zoo: nk.Zoo) -> None:
    """Remove stored embeddings, so that `task2vec` computes those of all sources again."""
    with zoo.catalogue.database.writing() as connection:
        table = schema.artifacts
        connection.execute(table.delete().where(table.c.kind.startswith(EMBEDDING)))


def page(seconds_of: dict[str, dict[str, float]]) -> str:
    rows = [[f"`{name}`", *(f"{row[str(count)]:.2f}" for count in COUNTS)] for name, row in seconds_of.items()]
    return f"""# Cost of ranking related tasks

Made by `python benchmarks/near.py`: process seconds of `Zoo.near` for `{TARGET}` against zoos of digit tasks, one LeNet
each, one thread. The Fréchet distance includes the training of the target's own network. With ten tasks, `task2vec`
costs {share(seconds_of, "task2vec")} times as much as LogME if the embeddings of the sources must be computed, and
{share(seconds_of, KEPT)} times as much when they are stored.

{table(["measure", *(f"{count} tasks" for count in COUNTS)], rows)}
"""


def share(seconds_of: dict[str, dict[str, float]], name: str) -> str:
    """Process time in units of LogME's, with ten tasks."""
    return f"{seconds_of[name]['10'] / seconds_of['logme']['10']:.1f}"


if __name__ == "__main__":
    main()
