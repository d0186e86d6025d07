"""What it costs to find kin: one digits target against 5, 10 and 20 tasks of a zoo, by every measure.

    python benchmarks/near.py

The zoo is made of digit tasks with one trained LeNet each. Seconds are wall time of `Zoo.near`; the Fréchet distance
includes the training of the target's own network where the zoo has none. Figures go to `benchmarks/near.json`.
"""

import tempfile
import time
from pathlib import Path

import torch

import nearkin as nk
from results import keep

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
TARGET = "digits?classes=1,4,7&rest=other"
MEASURES = (
    "kin",
    "kin-drawn",
    "logme",
    "leep",
    "nce",
    "hscore",
    "knn",
    "head",
    "gradnorm",
    "task2vec",
    "finetune",
    "frechet",
)


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    with tempfile.TemporaryDirectory() as folder, nk.Zoo(Path(folder) / "zoo") as zoo:
        for number, data in enumerate(DATA, 1):
            zoo.add(nk.task(data, name=data), "lenet", trials=1, recipe=RECIPE)
            if number not in (5, 10, 20):
                continue
            for measure in MEASURES:
                target = nk.task(TARGET, name=f"target {number}")  # another name: its network is trained anew
                start = time.perf_counter()
                ranking = zoo.near(target, measure)
                found[measure][str(number)] = round(time.perf_counter() - start, 2)
                print(
                    f"{number} tasks, {measure}: {found[measure][str(number)]} s, nearest {ranking.nearest.name}",
                    flush=True,
                )
    keep(__file__, {"target": TARGET, "seconds by number of tasks": found})


if __name__ == "__main__":
    main()
