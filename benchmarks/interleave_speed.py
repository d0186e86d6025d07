"""Time and memory of the interleaved search, and agreement of student and teacher."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import nearkin as nk
from interleave_runs import DIGIT_SIZED
from measure import peak_bytes, process_seconds
from nearkin.core.events import finish
from nearkin.core.rng import Streams
from nearkin.multitask.encoder_transfer import EncoderTransfer, transfer_loss
from nearkin.multitask.interleave import Interleave, InterleaveOptions, Turn
from nearkin.multitask.matching import Matching, match_encoders
from nearkin.multitask.multitask_state import MultitaskState, encoder_of
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import PCDarts
from nearkin.search.spaces.registry import space

SMALL = replace(PARTIAL.frame, channels=8, num_cells=3)
TIMED = replace(PARTIAL, frame=SMALL, epochs=1000, warmup=0, batch_size=64, learning_rate=0.05)
NUM_ROUNDS, REPEATS, FRESH = 2, 3, 3
NONE = EncoderTransfer(transfer="none")
MEBIBYTE = 2**20


def digit_sized(limit: int = 400) -> list[nk.Task]:
    """Low digits, high digits and fashion, each of 8x8 pixels."""
    return [nk.task(text.replace("limit=400", f"limit={limit}"), name=name) for name, text in DIGIT_SIZED.items()]


class _Passes:
    """An interleaved search of which single passes are measured."""

    def __init__(self, gradient: GradientOptions = TIMED, **options: Any) -> None:
        self.search = Interleave(
            digit_sized(), space("darts"), InterleaveOptions(gradient=gradient, num_rounds=NUM_ROUNDS, **options)
        )
        self.state = self.search.init(0)

    def run(self, transfer: bool) -> None:
        """Take one pass, with a transfer or without one."""
        self.state.done = 0 if transfer else 1
        self.state = finish(self.search.step(self.state))

    def weight_steps(self) -> None:
        """K·M steps of the weights of single tasks."""
        for turn in self.search._turns():
            learner, slot = self.search.learners[turn.task], self.state.slots[turn.slot]
            batch = learner.training_batch(self.state.streams, turn.round)
            learner.weight_step(slot, self.state.architecture, batch, 0.01)

    def architecture_step(self) -> None:
        """One step of the architecture on the validation losses of K tasks, in a pass without transfer."""
        self.state.done = 1
        self.search._architecture_step(self.state, 0.01)

    def transfers(self) -> None:
        """All transfers of a pass with their gradients: sets, embeddings of both encoders, matching."""
        self.state.done = 0
        for turn in self.search._turns():
            match = self.search._transfer(self.state, turn)
            if match is not None:
                match.loss.backward()
                self.state.slots[turn.slot].supernet.zero_grad(set_to_none=True)

    def matching(self) -> None:
        """The matching of all transfers of a pass with its gradients, for given embeddings."""
        options = EncoderTransfer()
        rng, width = torch.Generator().manual_seed(0), self.state.slots[0].supernet.head.in_features
        for _ in range(len(self.search._turns()) - 1):
            teacher, student = torch.randn(2, options.num_sets, options.num_augmentations, width, generator=rng)
            match_encoders(teacher, student.requires_grad_(), options.matching).loss.backward()


def speed() -> dict[str, Any]:
    """CPU seconds of a pass and of its parts; all take turns, medians over repeats.

    Each is run twice and the second run is timed: the first one after a work with much memory waits for its pages.
    """
    every = EncoderTransfer().every
    usual, exact = _Passes(), _Passes(replace(TIMED, order=2))
    works: dict[str, Callable[[], None]] = {
        "pass_with_transfer": lambda: usual.run(True),
        "pass_without_transfer": lambda: usual.run(False),
        "exact_pass_with_transfer": lambda: exact.run(True),
        "exact_pass_without_transfer": lambda: exact.run(False),
        "weight_steps": usual.weight_steps,
        "architecture_step": usual.architecture_step,
        "exact_architecture_step": exact.architecture_step,
        "transfers": usual.transfers,
        "matching": usual.matching,
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            work()
            seconds[name].append(process_seconds(work))
    median = {name: statistics.median(values) for name, values in seconds.items()}

    def mean_pass(kind: str = "") -> float:
        return (median[f"{kind}pass_with_transfer"] + (every - 1) * median[f"{kind}pass_without_transfer"]) / every

    reference = median["weight_steps"] + median["architecture_step"]
    return {
        "seconds": {name: round(value, 4) for name, value in median.items()},
        "every": every,
        "repeats": REPEATS,
        "pass_over_steps": round(mean_pass() / reference, 3),
        "pass_over_steps_every_1": round(median["pass_with_transfer"] / reference, 3),
        "share_of_transfer": round(median["transfers"] / every / mean_pass(), 4),
        "share_of_matching": round(median["matching"] / every / mean_pass(), 4),
        "share_of_matching_every_1": round(median["matching"] / median["pass_with_transfer"], 4),
        "exact_over_first_order": round(mean_pass("exact_") / mean_pass(), 3),
        "exact_over_first_order_without": round(
            median["exact_pass_without_transfer"] / median["pass_without_transfer"], 3
        ),
    }


def memory() -> dict[str, dict[str, float]]:
    """Bytes of all states, and the peak of one pass beyond them, in MiB."""
    figures = {}
    alone = PCDarts(digit_sized()[0], space("darts"), TIMED)
    single = finish(_stepped(alone, alone.init(0)))
    figures["one task, PC-DARTS"] = _bytes([single], lambda: finish(alone.step(single)))
    small = EncoderTransfer(num_sets=8, num_augmentations=4)
    for name, rounds, transfer, changes in (
        ("interleave, 1 round, no transfer", 1, NONE, {}),
        ("interleave, 2 rounds, no transfer", 2, NONE, {}),
        ("interleave, 3 rounds, no transfer", 3, NONE, {}),
        ("interleave, 2 rounds, 8 sets of 4", 2, small, {}),
        ("interleave, 1 round, 20 sets of 20", 1, EncoderTransfer(), {}),
        ("interleave, 2 rounds, 20 sets of 20", 2, EncoderTransfer(), {}),
        ("interleave, 3 rounds, 20 sets of 20", 3, EncoderTransfer(), {}),
        ("exact gradient, 2 rounds, no transfer", 2, NONE, {"order": 2}),
        ("exact gradient with checkpoints, 2 rounds, no transfer", 2, NONE, {"order": 2, "checkpoint": True}),
    ):
        gradient = replace(TIMED, order=changes.get("order", 1))
        options = InterleaveOptions(
            gradient=gradient, num_rounds=rounds, transfer=transfer, checkpoint=bool(changes.get("checkpoint"))
        )
        search = Interleave(digit_sized(), space("darts"), options)
        state = finish(_stepped(search, search.init(0)))
        state.done = 0  # a pass with transfer
        figures[name] = _bytes(state.slots, lambda search=search, state=state: finish(search.step(state)))
    return figures


def _stepped(search: Any, state: Any) -> Any:
    """One step, so that optimisers have their state."""
    return (yield from search.step(state))


def _bytes(slots: list[Any], work: Callable[[], Any]) -> dict[str, float]:
    """Weights with running statistics and momentum of the slots, and the peak of work beyond them."""
    kept = sum(
        value.numel() * value.element_size()
        for slot in slots
        for value in (*slot.supernet.state_dict().values(), *slot.weights.values())  # momentum has the size of weights
    )
    peak = peak_bytes(work)
    return {"state": round(kept / MEBIBYTE, 2), "pass": round(peak / MEBIBYTE, 1)}


AGREEING = {"none": NONE, "mmd": EncoderTransfer()}
"""Transfers whose agreement is measured."""

LEARNED = replace(PARTIAL, frame=SMALL, epochs=6, warmup=2, batch_size=32, learning_rate=0.05)


class _Recorded(Interleave):
    """Interleaved search that records the active share of every transfer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shares: list[float] = []

    def _transfer(self, state: MultitaskState, turn: Turn) -> Matching | None:
        match = super()._transfer(state, turn)
        self.shares += [] if match is None else [match.active]
        return match


def agreement(transfer: str, seed: int) -> dict[str, Any]:
    """Agreement of students and teachers on fresh augmentation sets at the end of a search, with λ = 1."""
    options = InterleaveOptions(gradient=LEARNED, transfer=AGREEING[transfer])
    search = _Recorded(digit_sized(), space("nasbench201"), options)
    state = search.init(seed)
    while not search.ended(state):
        state = finish(search.step(state))
    shares = search.shares
    return {
        "agreement": round(_fresh_agreement(search, state), 4),
        "transfers": len(shares),
        "smallest_active": round(min(shares), 4) if shares else None,
        "share_below_tenth": round(sum(share <= 0.1 for share in shares) / len(shares), 4) if shares else None,
        "metrics": {record.task: round(record.metric, 4) for record in state.rounds[-len(search.tasks) :]},
    }


def _fresh_agreement(search: Interleave, state: MultitaskState) -> float:
    full, values = EncoderTransfer(), []
    fixed = {name: value.detach() for name, value in state.architecture.items()}
    for repeat in range(FRESH):
        for turn in search._turns()[1:]:
            search._draw(state, turn)  # makes the sources of the sets
            sources = search._sources[state.streams.seed]
            assert turn.before is not None
            pair = [sources[turn.before.task], sources[turn.task]]
            sets = full.draw(pair, Streams(state.streams.seed).at("fresh", repeat, turn.number))
            encoders = [encoder_of(state.slots[slot], fixed) for slot in (turn.before.slot, turn.slot)]
            with torch.no_grad():
                values.append(transfer_loss(encoders[0], encoders[1], sets, full).agreement)
    return statistics.fmean(values)
