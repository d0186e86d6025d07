"""The interleaved search compared with its baselines: quality, ablations, agreement, speed and memory.

    python benchmarks/interleave.py --only speed,agreement,classes,detection,ablations,page

Every finished run is stored in `interleave.json` under section/row/seed, and the same command continues after a stop.
Seeds come first, so that all rows have the same number of runs at any time. Needs MNIST, Fashion-MNIST and CIFAR-10 in
`$NEARKIN_DATA`.
"""

import argparse
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from interleave_page import page, summary
from interleave_runs import FRESH_SEEDS, SECTIONS
from interleave_speed import AGREEING, agreement, memory, speed
from results import keep

FILE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "figures" / "interleave.md"
STAGES = ("speed", "agreement", "classes", "detection", "ablations", "page")

Run = Callable[[], dict[str, Any]]


def runs_of(stage: str) -> Iterator[tuple[str, Run]]:
    """Runs of a section by their keys, seed by seed."""
    if stage == "speed":
        yield "speed/time/0", speed
        yield "speed/memory/0", memory
    elif stage == "agreement":
        for seed in FRESH_SEEDS:
            for kind in AGREEING:
                yield f"agreement/{kind}/{seed}", lambda kind=kind, seed=seed: agreement(kind, seed)
    else:
        section = SECTIONS[stage]
        for seed in section.seeds:
            for name in section.settings:
                yield f"{stage}/{name}/{seed}", lambda name=name, seed=seed: section.run(name, seed)


def stored() -> dict[str, Any]:
    """All finished runs, and the figures of the summary."""
    if not FILE.exists():
        return {"runs": {}, "summary": {}}
    figures: dict[str, Any] = json.loads(FILE.read_text())
    return figures


def store(runs: dict[str, Any], summary: dict[str, Any] | None = None) -> None:
    """Add runs to the file; several processes may do so at the same time."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = stored()
        keep(__file__, {"runs": before["runs"] | runs, "summary": summary or before["summary"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(STAGES), help=f"stages: {', '.join(STAGES)}")
    parser.add_argument("--add", type=Path, help="another file of runs, which are added first")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.add is not None:
        store(json.loads(chosen.add.read_text())["runs"])
    stages = chosen.only.split(",")
    for stage in stages:
        for key, run in runs_of(stage) if stage != "page" else ():
            if key not in stored()["runs"]:
                start = time.process_time()
                store({key: run()})
                print(key, f"{time.process_time() - start:.0f} s", flush=True)
    if "page" in stages:
        runs = stored()["runs"]
        store({}, summary(runs))
        PAGE.write_text(page(runs))


if __name__ == "__main__":
    main()
