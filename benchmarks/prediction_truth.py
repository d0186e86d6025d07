"""True results of the prediction benchmark: every source fine-tuned on every target, many networks at once.

Networks of one kind are stacked: weights `[S, ...]`, one forward pass of all by `vmap`, one backward pass of the sum of
their losses, one Adam over the stack. The time of small networks is mostly that of calls, so this is 1.2 to 3 times
as fast as one after the other, and all sources of a target share the head they start with and the order of batches.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

import nearkin as nk
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.types import Buffers, Params
from nearkin.nets.heads import SCALE_SAMPLES, features, with_head
from prediction_tasks import NAMES, NETWORKS, SHAPE, Parts, parts

WIDEST = 10
SOURCE_STEPS, SOURCE_BATCH, SOURCE_RATE = 300, 64, 2e-3
BATCH = 32
REPLICAS = 2
EVALUATION_BATCH = 50  # of stacked passes: larger ones leave the cache
ROWS = 12  # networks trained at once on data of their own


@dataclass(frozen=True)
class Run:
    """A recipe of fine-tuning.

    Attributes:
        grid: steps before which held-out loss and accuracy are taken; the last ends the run.
        rate: of Adam, or of SGD with a momentum of 0.9.
        head: `zero`, `drawn` as `nn.Linear` draws it, or `scaled` as `nets.heads.with_start` does.
        optimiser: `adam` or `sgd`.
    """

    grid: tuple[int, ...] = (0, 3, 8, 15, 25, 40, 60)
    rate: float = 1e-3
    head: str = "zero"
    optimiser: str = "adam"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.grid[-1]

    def made(self, params: Params) -> torch.optim.Optimizer:
        """The optimiser of these weights."""
        if self.optimiser == "sgd":
            return torch.optim.SGD(params.values(), self.rate, momentum=0.9)
        return torch.optim.AdamW(params.values(), self.rate, weight_decay=0.0, fused=True)


RUN = Run()
DRAWN_RUN = Run(head="drawn")


@dataclass(frozen=True, eq=False)
class Stack:
    """S networks of one kind: their module, and weights and buffers `[S, ...]`."""

    module: nn.Module
    params: Params
    buffers: Buffers

    @classmethod
    def of(cls, modules: list[nn.Module]) -> "Stack":
        """The stack of networks with equal shapes."""
        params = {
            name: torch.stack([module.get_parameter(name).detach() for module in modules])
            for name, _ in modules[0].named_parameters()
        }
        buffers = {
            name: torch.stack([module.get_buffer(name) for module in modules]) for name, _ in modules[0].named_buffers()
        }
        return cls(modules[0], params, buffers)

    def outputs(self, x: Tensor, own: bool = False) -> Tensor:
        """Outputs `[S, B, C]` of shared inputs `[B, ...]`, or of each network's own `[S, B, ...]`."""

        def f(params: Params, buffers: Buffers, x: Tensor) -> Tensor:
            return functional_call(self.module, (params, buffers), (x,))

        return vmap(f, (0, 0, 0 if own else None))(self.params, self.buffers, x)

    def row(self, index: int) -> nn.Module:
        """One of the networks, in evaluation mode."""
        module = copy.deepcopy(self.module)
        values = {name: value[index] for name, value in {**self.params, **self.buffers}.items()}
        module.load_state_dict(values)
        return module.eval()


def padded(module: nn.Module, num_outputs: int) -> nn.Module:
    """The network with its head widened to `WIDEST` by zeros."""
    wide = with_head(module, WIDEST, 0, "head")
    with torch.no_grad():
        for value, old in ((wide.head.weight, module.head.weight), (wide.head.bias, module.head.bias)):
            value.zero_()
            value[:num_outputs] = old
    return wide


def trained_sources(network: str, seed: int, data: list[Parts]) -> Stack:
    """Trained networks of all tasks from the same initial weights, and the initial network as the last row.

    `network` is a name of `NETWORKS` or a network string.
    """
    network = NETWORKS.get(network, network)
    starts = [nk.build(network, SHAPE, task_data.num_outputs, seed) for task_data in data]
    wide = [padded(start, task_data.num_outputs) for start, task_data in zip(starts, data, strict=True)]
    pieces = []
    for first in range(0, len(data), ROWS):
        pieces.append(_trained(Stack.of(wide[first : first + ROWS]), data[first : first + ROWS], seed))
    pieces.append(Stack.of([padded(nk.build(network, SHAPE, WIDEST, seed), WIDEST)]))
    params, buffers = (
        {name: torch.cat([getattr(piece, kind)[name] for piece in pieces]) for name in getattr(pieces[0], kind)}
        for kind in ("params", "buffers")
    )
    return Stack(wide[0], params, buffers)


def _trained(stack: Stack, data: list[Parts], seed: int) -> Stack:
    """Networks trained side by side, each on its own task, the rate falling to zero by a cosine."""
    absent = torch.stack([torch.arange(WIDEST) >= task_data.num_outputs for task_data in data])[:, None]
    rngs = [Streams(seed).at("source", index) for index in range(len(data))]
    for value in stack.params.values():
        value.requires_grad_()
    optimiser = torch.optim.AdamW(stack.params.values(), SOURCE_RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, SOURCE_STEPS)
    stack.module.train()
    for _ in range(SOURCE_STEPS):
        batches = []
        for task_data, rng in zip(data, rngs, strict=True):
            x, y = task_data.source
            index = torch.randint(len(x), (SOURCE_BATCH,), generator=rng)
            batches.append((x[index], y[index]))
        x, y = (torch.stack(values) for values in zip(*batches, strict=True))
        outputs = stack.outputs(x, own=True).masked_fill(absent, -1e9)
        optimiser.zero_grad()
        F.cross_entropy(outputs.flatten(0, 1), y.flatten()).mul(len(data)).backward()
        optimiser.step()
        schedule.step()
    return Stack(stack.module, {name: value.detach() for name, value in stack.params.items()}, stack.buffers)


def fresh_heads(stack: Stack, num_outputs: int, seed: int, head: str, x: Tensor | None = None) -> Stack:
    """Copies of the networks with one fresh head for all: of zeros, or drawn as `nn.Linear` draws.

    A `scaled` head is a drawn one whose weights are divided by the root mean square of the network's features of `x`,
    as `nets.heads.with_start` does.
    """
    size = len(stack.params["head.weight"])
    module = with_head(stack.module, num_outputs, seed, "head")
    params = {name: value.clone() for name, value in stack.params.items()}
    for name in ("head.weight", "head.bias"):
        value = module.get_parameter(name).detach() * (head != "zero")
        params[name] = value.expand(size, *value.shape).clone()
    if head == "scaled":
        assert x is not None
        params["head.weight"] /= feature_scales(stack, x[:SCALE_SAMPLES])[:, None, None]
    return Stack(module, params, {name: value.clone() for name, value in stack.buffers.items()})


def feature_scales(stack: Stack, x: Tensor) -> Tensor:
    """Root mean square `[S]` of every network's features of inputs `[N, ...]`."""
    with torch.no_grad():
        sizes = [features(stack.row(i), x, "head").square().mean() for i in range(len(stack.params["head.weight"]))]
    return torch.stack(sizes).sqrt().clamp_min(1e-6)


def held_out_scores(stack: Stack, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy `[S]` of every network."""
    stack.module.eval()
    loss, right = torch.zeros(2, len(stack.params["head.weight"]))
    with torch.no_grad():
        for xs, ys in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
            outputs = stack.outputs(xs)
            loss += F.cross_entropy(outputs.movedim(0, 2), ys[:, None].expand(-1, len(outputs)), reduction="none").sum(
                0
            )
            right += (outputs.argmax(2) == ys).sum(1)
    return loss / len(x), right / len(x)


def order_of(count: int, steps: int, batch: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Indices of batches, epoch after epoch in a new order."""
    left = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(left) < batch:
            left = torch.cat([left, torch.randperm(count, generator=rng)])
        yield left[:batch]
        left = left[batch:]


def fine_tuned(stack: Stack, task_data: Parts, seed: int, replica: int, target: int, run: Run) -> dict[str, Tensor]:
    """Curves of every source on one target: held-out loss and accuracy `[S, len(grid)]`, training loss `[S, steps]`."""
    head = derived_seed(seed, "fine-tuned head", target, replica)
    stack = fresh_heads(stack, task_data.num_outputs, head, run.head, task_data.target[0])
    (x, y), rng = task_data.target, Streams(seed).at("fine-tuned order", target, replica)
    for value in stack.params.values():
        value.requires_grad_()
    optimiser, size = run.made(stack.params), len(stack.params["head.weight"])
    losses, scores, training = [], [], []
    for step, index in enumerate([*order_of(len(x), run.steps, BATCH, rng), None]):
        if step in run.grid:
            loss, accuracy = held_out_scores(stack, *task_data.held_out)
            losses.append(loss)
            scores.append(accuracy)
        if index is None:
            break
        stack.module.train()
        outputs, labels = stack.outputs(x[index]), y[index][:, None].expand(-1, size)
        each = F.cross_entropy(outputs.movedim(0, 2), labels, reduction="none").mean(0)
        optimiser.zero_grad()
        each.sum().backward()
        optimiser.step()
        training.append(each.detach())
    return {"loss": torch.stack(losses, 1), "accuracy": torch.stack(scores, 1), "training": torch.stack(training, 1)}


def kept(file: Path, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The content of a file; if it does not exist, it is computed and written completely."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".part")
        torch.save(compute(), temporary)
        temporary.rename(file)
    tensors: dict[str, Tensor] = torch.load(file)
    return tensors


def sources(cache: Path, network: str, seed: int, data: list[Parts]) -> Stack:
    """The trained sources, from the cache if it has them."""

    def compute() -> dict[str, Tensor]:
        stack = trained_sources(network, seed, data)
        return {**stack.params, **stack.buffers}

    tensors = kept(cache / "sources" / f"{network}-{seed}.pt", compute)
    module = nk.build(NETWORKS[network], SHAPE, WIDEST, seed)
    params = {name: tensors[name] for name, _ in module.named_parameters()}
    return Stack(module, params, {name: tensors[name] for name, _ in module.named_buffers()})


def truth(
    cache: Path, network: str, seed: int, data: list[Parts], run: Run = RUN, name: str | None = None
) -> Iterator[list[dict[str, Tensor]]]:
    """Curves of every target's replicas, each stored as soon as it is finished."""
    stack = sources(cache, network, seed, data)
    for target, task_data in enumerate(data):
        curves = []
        for replica in range(REPLICAS):
            work = functools.partial(fine_tuned, stack, task_data, seed, replica, target, run)
            curves.append(kept(cache / "truth" / (name or run.head) / f"{network}-{seed}-{target}-{replica}.pt", work))
        yield curves


def all_parts(seed: int) -> list[Parts]:
    """Data of all tasks under one seed."""
    return [parts(name, seed) for name in NAMES]
