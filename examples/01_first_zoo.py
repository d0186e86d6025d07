"""A zoo of three tasks, two from data strings and one from arrays, and what the zoo stores of them.

python examples/01_first_zoo.py [FOLDER]
"""

import sys

import numpy as np

import nearkin as nk


def main(folder: str) -> None:
    x = np.random.default_rng(0).normal(size=(300, 5))
    with nk.Zoo(folder) as zoo:
        zoo.add(nk.task("digits?detect=0&limit=300", name="zero"), "lenet", trials=2, recipe=nk.Recipe(epochs=6))
        zoo.add(nk.task("digits?parity&limit=300", name="odd"), "lenet", trials=2, recipe=nk.Recipe(epochs=6))
        zoo.add(nk.Task.from_arrays("product", x, x[:, 0] * x[:, 1] > 0), trials=1, recipe=nk.Recipe(epochs=20))
        for name in zoo:
            record, solved = zoo.record(name), zoo.solved(name)
            print(
                f"{name:8s} {record.network:6s} {record.metric:.3f} ± {solved.spread:.3f}, "
                f"loss 0.5 after {solved.trials[0].history.steps_to(0.5)} steps"
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example-zoo")
