r"""Interleaved search of one architecture for several tasks (paper 002).

The K tasks take turns in M rounds. In its turn task $k$ takes a step of its weights on

$$L_k(W_k, H_k, A) + \lambda\, T(W_{k-1}, W_k, A),$$

its own training loss and the transfer loss against the encoder of the task before it, which for the first task of a
round is the last one of the round before. The first turn of a pass has no teacher. After $M K$ turns the architecture
A takes a step on the validation losses of all tasks; so a pass has $M K + 1$ stages. Every task has one encoder, which
continues from round to round. As printed (`literal`) every round has encoders of its own, and only the first one sees
a training loss: the others learn from their teacher alone, and their heads from the labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Caution, Work
from nearkin.multitask.augmentation_sets import SetSource, require_examples
from nearkin.multitask.encoder_transfer import EncoderTransfer, transfer_loss
from nearkin.multitask.hypergradient import Stage, StageLoss, chain_gradient
from nearkin.multitask.matching import Matching
from nearkin.multitask.multitask_search import MultitaskOptions, MultitaskSearch, mean_loss
from nearkin.multitask.multitask_state import MultitaskState, encoder_of
from nearkin.search.methods.darts.architecture_step import Loss, Tensors, second_order
from nearkin.search.methods.darts.supernet_learner import LearnerState, SupernetLearner, drift, stateless_loss
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.supernet_layout import Architecture
from nearkin.tasks.examples import Batch
from nearkin.tasks.rows import Rows
from nearkin.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class InterleaveOptions(MultitaskOptions):
    """Options of the interleaved search.

    Attributes:
        num_rounds: M, turns of every task in a pass.
        transfer: how a task learns from the one before it.
        literal: as printed: encoders of their own for every round, which after the first learn by transfer alone.
        checkpoint: whether the exact gradient of the architecture (order 2) computes every stage a second time, so that
            its memory does not grow with the number of stages.
    """

    num_rounds: int = 2
    transfer: EncoderTransfer = field(default_factory=EncoderTransfer)
    literal: bool = False
    checkpoint: bool = False

    def __post_init__(self) -> None:
        require(self.num_rounds >= 1, f"the number of rounds must be 1 or more, got {self.num_rounds}")
        require(
            not (self.literal and self.gradient.order == 2),
            "the printed form has no exact gradient of the architecture; use order=1, or literal=False",
        )
        require(self.gradient.exact, "the interleaved search has no finite difference for order 2; use exact=true")


class Interleave(MultitaskSearch):
    """Interleaved search of one architecture for several tasks.

    Args:
        tasks: tasks of images, in the order of their turns.
        space: space of cells or chains.
        options: options of the search.
        device: device of the computation (default: CPU).
        unlabelled: by the name of a task, further inputs of it without labels, which take part in the transfer.

    >>> from nearkin.core.budget import Budget
    >>> from nearkin.search.methods.darts.gradient_options import GradientOptions
    >>> from nearkin.search.searcher import run_search
    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> from nearkin.search.supernet.reference import Frame
    >>> x, y = torch.rand(48, 1, 6, 6), torch.arange(48) % 2
    >>> tasks = [Task.from_arrays(name, x, y, x, y) for name in ("one", "two")]
    >>> gradient = GradientOptions(frame=Frame(channels=4, num_cells=1), epochs=1, batch_size=12)
    >>> options = InterleaveOptions(gradient=gradient, transfer=EncoderTransfer(num_sets=4, num_augmentations=2))
    >>> run_search(Interleave(tasks, GeneralSpace((3,), ("zero", "conv3")), options), Budget()).reason
    'all epochs are done'
    """

    name = "interleave"
    options: InterleaveOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: InterleaveOptions | None = None,
        *,
        device: torch.device | None = None,
        unlabelled: Mapping[str, Rows] | None = None,
    ) -> None:
        super().__init__(tasks, space, options or InterleaveOptions(), device=device)
        self.unlabelled = dict(unlabelled or {})
        for name, rows in self.unlabelled.items():
            self._require_inputs(name, rows)
        if self.unlabelled:
            counts = {name: len(rows) for name, rows in self.unlabelled.items()}
            self._settings = {**self._settings, "unlabelled": counts}
        if self._transfers:
            for task in self.tasks:
                require_examples(task, self.options.transfer.num_sets // 2)
        self._sources: dict[int, list[SetSource]] = {}

    def _require_inputs(self, name: str, rows: Rows) -> None:
        shapes = {task.name: task.input_shape for task in self.tasks}
        require(
            shapes.get(name) == rows.shape,
            f"got inputs without labels of shape {rows.shape} for {name!r}, expected one of {shapes}",
            MismatchError,
        )

    @property
    def _transfers(self) -> bool:
        """Whether anything is transferred: a task has no other to learn from if it is alone."""
        return self.options.transfer.active and self.num_tasks > 1

    @property
    def transfer_every(self) -> int:
        """Number of passes from one transfer between tasks to the next; 1 if all passes are alike."""
        return self.options.transfer.every if self._transfers else 1

    def _new_slots(self, seed: int) -> list[LearnerState]:
        rounds = self.options.num_rounds if self.options.literal else 1
        return [slot for _ in range(rounds) for slot in super(Interleave, self)._new_slots(seed)]

    def _architecture_gradient(self, state: MultitaskState, rate: float) -> tuple[float, Tensors]:
        if self.gradient.order == 1:
            return super()._architecture_gradient(state, rate)
        losses = [self._validation_loss(state, task) for task in range(self.num_tasks)]
        fixed = {name: value.detach() for name, value in state.architecture.items()}
        first = state.scales
        if not first:
            with torch.no_grad():
                first = [float(loss(slot.weights, fixed)) for loss, slot in zip(losses, state.slots, strict=True)]
        factors, turns = self._factors(state, first), self._turns()
        if len(turns) == 1:  # one task, one round: the search for one task to the last bit
            training, slot = self._training_loss(state, turns[0]), state.slots[0]
            return second_order(training, losses[0], slot.weights, state.architecture, rate, drift=drift(slot))

        def validation(weights: Sequence[Tensors], architecture: Tensors) -> Tensor:
            terms = zip(factors, losses, weights, strict=True)
            return torch.stack([factor * loss(slot, architecture) for factor, loss, slot in terms]).sum()

        stages = [Stage(turn.slot, self._teacher_slot(state, turn), self._stage_loss(state, turn), rate)
                  for turn in turns]  # fmt: skip
        weights = [slot.weights for slot in state.slots]
        drifts = [drift(slot) for slot in state.slots]
        return chain_gradient(
            stages, validation, weights, state.architecture, drift=drifts, checkpoint=self.options.checkpoint
        )

    def _teacher_slot(self, state: MultitaskState, turn: "Turn") -> int | None:
        """Number of the slot from which a turn learns in this pass; None if it learns alone."""
        return turn.before.slot if turn.before is not None and self._transfers_now(state, turn) else None

    def _stage_loss(self, state: MultitaskState, turn: "Turn") -> StageLoss:
        """The loss of a turn as a function of the weights of student and teacher and of the architecture."""
        slot, options, training = state.slots[turn.slot], self.options.transfer, self._training_loss(state, turn)
        if not self._transfers_now(state, turn):
            return lambda student, teacher, architecture: training(student, architecture)
        assert turn.before is not None
        sets, before = self._draw(state, turn), state.slots[turn.before.slot]

        def loss(student: Tensors, teacher: Tensors | None, architecture: Tensors) -> Tensor:
            encoders = (encoder_of(before, architecture, teacher), encoder_of(slot, architecture, student))
            match = transfer_loss(*encoders, sets, options, recompute=False)
            return training(student, architecture) + options.factor * match.loss

        return loss

    def _training_loss(self, state: MultitaskState, turn: "Turn") -> Loss:
        """Training loss of a turn as a function of weights and architecture."""
        return stateless_loss(state.slots[turn.slot], self.tasks[turn.task].form, self._batch(state, turn))

    def _train(self, state: MultitaskState, rate: float) -> Work[None]:
        losses, shares = [], []
        for turn in self._turns():
            loss, active = self._take_turn(state, turn, rate)
            losses.append(loss)
            shares += [] if active is None else [active]
        state.figures |= mean_loss(losses)
        state.active += [fmean(shares)] if shares else []
        if len(state.active) == 1 and state.active[0] == 0:
            yield Caution(
                "no pair of augmentation sets is active, so nothing is transferred: student and teacher call all pairs "
                "alike, or all different; leave out the threshold, and the teacher's differences give one"
            )

    def _take_turn(self, state: MultitaskState, turn: "Turn", rate: float) -> tuple[float, float | None]:
        """Step of the weights in a turn; returns the training loss and the share of active pairs, if any."""
        slot = state.slots[turn.slot]
        slot.dice.enter()
        try:
            match = self._transfer(state, turn)
            penalty = None if match is None else self.options.transfer.factor * match.loss
            loss = self._weight_step(state, turn, rate, penalty)
        finally:
            slot.dice.leave()
        active = match.active if match is not None and self.options.transfer.transfer == "mmd" else None
        self._record(state, turn.round, turn.task, slot, active)
        return loss, active

    def _weight_step(self, state: MultitaskState, turn: "Turn", rate: float, penalty: Tensor | None) -> float:
        """Step of the weights along the gradients of the training loss and of the transfer loss."""
        take_step = _printed_step if self.options.literal and turn.before else SupernetLearner.weight_step
        learner, slot, batch = self.learners[turn.task], state.slots[turn.slot], self._batch(state, turn)
        return take_step(learner, slot, state.architecture, batch, rate, penalty)

    def _turns(self) -> list["Turn"]:
        """The M·K turns of a pass."""
        turns: list[Turn] = []
        for number in range(self.options.num_rounds * self.num_tasks):
            round_, task = divmod(number, self.num_tasks)
            slot = number if self.options.literal else task
            turns.append(Turn(number, round_, task, slot, turns[-1] if turns else None))
        return turns

    def _batch(self, state: MultitaskState, turn: "Turn") -> Batch:
        number = state.done * self.options.num_rounds + turn.round
        return self.learners[turn.task].training_batch(state.streams, number)

    def _transfers_now(self, state: MultitaskState, turn: "Turn") -> bool:
        return self._transfers and turn.before is not None and state.done % self.options.transfer.every == 0

    def _transfer(self, state: MultitaskState, turn: "Turn") -> Matching | None:
        """The transfer loss of a turn with a gradient for the student's weights; None without a teacher."""
        options = self.options.transfer
        if not self._transfers_now(state, turn):
            return None
        assert turn.before is not None
        fixed = {name: value.detach() for name, value in state.architecture.items()}
        teacher = encoder_of(state.slots[turn.before.slot], fixed).constant()
        student = encoder_of(state.slots[turn.slot], fixed)
        return transfer_loss(teacher, student, self._draw(state, turn), options)

    def _draw(self, state: MultitaskState, turn: "Turn") -> list[Tensor]:
        """Augmentation sets of a turn, half of the teacher's task and half of the student's."""
        assert turn.before is not None
        if state.streams.seed not in self._sources:
            text = self.options.transfer.augment
            self._sources = {
                state.streams.seed: [
                    SetSource.of(
                        learner.task,
                        learner.split_examples(state.streams)[0],
                        text,
                        self.unlabelled.get(learner.task.name),
                    )
                    for learner in self.learners
                ]
            }
        sources = self._sources[state.streams.seed]
        rng = state.streams.at("sets", state.done, turn.number)
        device = self.learners[0].device
        drawn = self.options.transfer.draw([sources[turn.before.task], sources[turn.task]], rng)
        return [part.to(device) for part in drawn]


@dataclass(frozen=True)
class Turn:
    """One task's turn in a pass.

    Attributes:
        number: number of the turn in the pass, from 0.
        round: number of the round, from 0.
        task: number of the task.
        slot: number of the slot that learns.
        before: the turn before it, whose slot is the teacher; None for the first.
    """

    number: int
    round: int
    task: int
    slot: int
    before: "Turn | None" = None


def _printed_step(
    learner: SupernetLearner, slot: LearnerState, architecture: Architecture, batch: Batch, rate: float,
    penalty: Tensor | None,
) -> float:  # fmt: skip
    """Step of the printed form: the encoder learns by transfer alone, the head on the encoder's feature maps."""
    for group in slot.weight_optimiser.param_groups:
        group["lr"] = rate
    slot.weight_optimiser.zero_grad(set_to_none=True)
    if penalty is not None:
        penalty.backward()
    fixed = {name: value.detach() for name, value in architecture.items()}
    with torch.no_grad():
        maps = slot.supernet.maps(batch.x, fixed)
    loss = learner.task.form.loss(slot.supernet.head(maps), batch.y)
    loss.backward()
    learner.apply_gradients(slot, rate, len(batch.y))
    return float(loss.detach())
