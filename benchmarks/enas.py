"""ENAS: a step on a sampled path compared with the same cell alone, and the time of one epoch.

    python benchmarks/enas.py [PART] …

Parts: `cells`, `recurrent`, `epoch`. Ratios are of process time, in one process on one thread, taken in turn. `alone`
is the network of the genotype itself, trained by the same optimiser; `loop` is a recurrent cell written by hand with
the same operations. The epoch has the default options, on all training digits of scikit-learn and on 2,000 of MNIST
($NEARKIN_DATA). The figures of parts that are not named do not change. The page is `docs/figures/enas-speed.md`.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearkin as nk
from measure import ratios
from nearkin.core.events import finish
from nearkin.core.rng import Streams, seeded
from nearkin.search.genotypes.genotype import Genotype, Recurrent
from nearkin.search.methods.enas.enas_search import Enas
from nearkin.search.methods.enas.shared_weights import shared_network
from nearkin.search.networks.build import build_network
from nearkin.search.networks.recurrent_cells import FUNCTIONS, RecurrentNetwork
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.registry import space
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import STEM_FACTOR, Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.readers.language import language_task
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "enas-speed.md"
NUM_GENOTYPES, ROUNDS, BATCH = 6, 7, 64
WORDS, LENGTH, HIDDEN = 200, 35, 64


def steps(networks: Sequence[nn.Module], inputs: Sequence[Sequence[Any]], y: Tensor) -> Callable[[], None]:
    """One training step of every network: SGD with momentum and a limit on the gradient, as ENAS makes it."""
    kept: dict[nn.Module, torch.optim.Optimizer] = {}
    for net in networks:
        kept.setdefault(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4))

    def work() -> None:
        for net, values in zip(networks, inputs, strict=True):
            kept[net].zero_grad()
            outputs = net(*values)
            F.cross_entropy(outputs.flatten(0, -2), y.flatten()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            kept[net].step()

    return work


def samples(name: str) -> list[Genotype]:
    return [space(name).sample(Streams(0).at("genotype", number)) for number in range(NUM_GENOTYPES)]


def cells() -> dict[str, Any]:
    """Steps on digits, with the default network of the command line."""
    task, frame, genotypes = nk.task("digits"), Frame(channels=16, num_cells=5), samples("enas")
    x, y = task.train.first(BATCH)
    skeleton = Skeleton(channels=16, num_cells=5, stem_factor=STEM_FACTOR)
    with seeded(0):
        shared = shared_network(space("enas"), task, frame)
        fused = Supernet(SupernetLayout.of(space("enas")), task.input_shape, task.num_outputs, frame)
    alone = [build_network(genotype, skeleton, task.input_shape, task.num_outputs) for genotype in genotypes]
    paths = [(x, genotype) for genotype in genotypes]
    candidates = {
        "path": steps([shared] * NUM_GENOTYPES, paths, y),
        "path of the fused supernet": steps([fused] * NUM_GENOTYPES, paths, y),
    }
    return ratios(steps(alone, [(x,)] * NUM_GENOTYPES, y), candidates, ROUNDS)


class Loop(nn.Module):
    """A recurrent cell as a plain loop over matrices, with the weights of a `RecurrentNetwork`."""

    def __init__(self, cell: Recurrent, net: RecurrentNetwork) -> None:
        super().__init__()
        self.cell, self.net = cell, net

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 `[B, T]` to `[B, T, V]`."""
        net, h = self.net, torch.zeros(len(tokens), HIDDEN)
        maps = {number: net.nodes[str(number)].weight.t() for number, *_ in net.plan}
        x = F.embedding(tokens, net.embedding.weight) @ net.input.weight.t()
        outputs = []
        for t in range(tokens.shape[1]):
            c, g = (x[:, t] + h @ net.recur.weight.t()).split(HIDDEN, -1)
            nodes = [h + torch.sigmoid(c) * (torch.tanh(g) - h)]
            for number, (before, activation) in enumerate(self.cell.nodes, 1):
                c, g = (nodes[before] @ maps[number]).split(HIDDEN, -1)
                nodes.append(nodes[before] + torch.sigmoid(c) * (FUNCTIONS[activation](g) - nodes[before]))
            h = torch.stack([nodes[number] for number in self.cell.output]).mean(0)
            outputs.append(h)
        return torch.stack(outputs, 1) @ net.head.weight.t() + net.head.bias


def recurrent() -> dict[str, Any]:
    """Steps on random text: 64 windows of 35 words."""
    name = "recurrent?loose_ends=true"
    words = torch.randint(WORDS, (20_000,), generator=torch.Generator().manual_seed(0)).tolist()
    task = language_task("random", " ".join(f"w{word}" for word in words), "w1 " * 2 * LENGTH, {"length": str(LENGTH)})
    x, y = task.train.first(BATCH)
    genotypes, skeleton = samples(name), Skeleton(channels=HIDDEN)
    with seeded(0):
        shared = shared_network(space(name), task, Frame(channels=HIDDEN))
    alone = [build_network(genotype, skeleton, task.input_shape, task.num_outputs) for genotype in genotypes]
    loops = []
    for genotype, net in zip(genotypes, alone, strict=True):
        assert isinstance(genotype, Recurrent)
        assert isinstance(net, RecurrentNetwork)
        loops.append(Loop(genotype, net))
        assert torch.allclose(loops[-1](x), net(x), atol=1e-5)
    inputs = [(x,)] * NUM_GENOTYPES
    candidates = {
        "path": steps([shared] * NUM_GENOTYPES, [(x, genotype) for genotype in genotypes], y),
        "loop": steps(loops, inputs, y),
    }
    return ratios(steps(alone, inputs, y), candidates, ROUNDS)


def epoch() -> dict[str, Any]:
    """Wall and process seconds of the first epoch with default options."""
    figures: dict[str, Any] = {}
    for name in ("digits", "mnist?limit=2000"):
        searcher = Enas(space("enas"), nk.task(name), Frame(channels=16, num_cells=5))
        state, done = searcher.init(0), {"training": [0.0, 0.0], "controller": [0.0, 0.0]}
        for number in range(searcher.steps_per_epoch):
            start = time.perf_counter(), time.process_time()
            state = finish(searcher.step(state))
            phase = done["training" if number < searcher.architectures_per_epoch else "controller"]
            phase[0] += time.perf_counter() - start[0]
            phase[1] += time.process_time() - start[1]
        seconds = {f"{part} {clock}": round(values[i], 1) for part, values in done.items()
                   for i, clock in enumerate(("wall seconds", "process seconds"))}  # fmt: skip
        total = {"wall seconds": round(sum(values[0] for values in done.values()), 1),
                 "process seconds": round(sum(values[1] for values in done.values()), 1)}  # fmt: skip
        figures[name] = {"training samples": len(searcher.split.train), "measured genotypes": state.evaluations,
                         **seconds, **total}  # fmt: skip
    return figures


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"cells": cells, "recurrent": recurrent, "epoch": epoch}


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    cell, text = figures["cells"], figures["recurrent"]
    ratios_rows = [
        ["path ÷ cell alone", f"{cell['path']:.2f}", "at most 1.2"],
        ["path of the fused supernet ÷ cell alone", f"{cell['path of the fused supernet']:.2f}", "–"],
        ["recurrent path ÷ recurrent cell alone", f"{text['path']:.2f}", "at most 1.2"],
        ["hand-written loop ÷ recurrent path", f"{text['loop'] / text['path']:.2f}", "at least 0.9"],
    ]
    epoch_rows = [
        [f"`{name}`", f"{row['training samples']:,}", f"{row['measured genotypes']}",
         *(f"{row[f'{part}{clock} seconds']:.0f}" for part in ("training ", "controller ", "")
           for clock in ("process", "wall"))]
        for name, row in figures["epoch"].items()
    ]  # fmt: skip
    clocks = [f"{part}, {clock}" for part in ("training", "controller", "epoch") for clock in ("process s", "wall s")]
    return f"""# Cost of ENAS

Made by `python benchmarks/enas.py`; one thread, on a machine that had other work.

## Steps

Ratios of process time of training steps with {NUM_GENOTYPES} genotypes, median of {ROUNDS} rounds in which all take
turns. *Alone* is the network of the genotype itself. The loop is a recurrent cell written by hand with the same
operations: a value above 1 means that the path is faster. The shared network for images computes with channels last,
the cell alone does not.

{table(["steps", "ratio", "goal"], ratios_rows)}

## One epoch

Default options with 16 channels and 5 cells: all training samples once, then the steps of the controller. Process
seconds are those of one thread without the time in which other work had the processor; wall seconds include it.

{table(["task", "training samples", "genotypes measured", *clocks], epoch_rows)}
"""


def main() -> None:
    torch.set_num_threads(1)
    file = Path(__file__).with_suffix(".json")
    stored = json.loads(file.read_text()) if file.exists() else {}
    figures = {name: stored[name] for name in PARTS if name in stored}
    for name in sys.argv[1:] or PARTS:
        figures[name] = PARTS[name]()
        print(name, json.dumps(figures[name], indent=2), flush=True)
    figures = {name: figures[name] for name in PARTS if name in figures}
    keep(__file__, figures)
    PAGE.write_text(page(figures))


if __name__ == "__main__":
    main()
