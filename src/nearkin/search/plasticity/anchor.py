r"""WeightPlasticity: keep shared weights near the values that earlier models need.

After model A the anchor is $\hat\theta$, and $F$ says how much each shared weight matters to A. While B is trained, the
shared weights have the penalty $\frac{\alpha}{2} (\theta - \hat\theta)^\top F (\theta - \hat\theta)$ (Benyahia et al.
2019, with a free strength α). With one model and a sequence of tasks this is elastic weight consolidation (Kirkpatrick
et al. 2017).
"""

import math
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, TrainingError, require
from nearkin.core.events import Work, operation
from nearkin.core.rng import derived_seed
from nearkin.core.types import Params
from nearkin.fisher.cotangents import Data
from nearkin.search.plasticity.accumulation import Blocks, accumulate, checked_importance, moved_anchors
from nearkin.search.plasticity.importance import measure_importance
from nearkin.search.plasticity.penalty_blocks import LIMIT, DiagonalBlock, PenaltyBlock, block_from
from nearkin.search.plasticity.plasticity_options import PlasticityOptions
from nearkin.search.plasticity.pull_plan import PullPlan
from nearkin.search.plasticity.shared_parameters import SEPARATOR, Shared, matching, named_parameters, names_in


class WeightPlasticity:
    r"""Anchor and importance of shared weights, and the pull to the anchor.

    Args:
        shared: the shared parameters: a mapping or pairs of names and parameters (`encoder.named_parameters()`), a
            module, or parameters alone. Models share them if they hold the same parameter objects; `rebind` is for
            models that hold copies.
        options: settings (default: `PlasticityOptions()`).
        changes: single settings, such as `alpha=3.0`.

    >>> shared = nn.Linear(2, 2)
    >>> a, b = nn.Sequential(shared, nn.Linear(2, 3)), nn.Sequential(shared, nn.Tanh(), nn.Linear(2, 3))
    >>> plasticity = WeightPlasticity(shared.named_parameters())
    >>> plasticity.anchor(a, torch.randn(20, 2), torch.arange(20) % 3)  # after the training of A
    >>> with torch.no_grad():  # stands for optimiser.step() of B
    ...     _ = shared.weight.add_(1.0)
    >>> plasticity.pull(lr=0.1)
    >>> plasticity
    WeightPlasticity(2 tensors, 6 weights, 1 model anchored, alpha 10)
    """

    def __init__(self, shared: Shared, options: PlasticityOptions | None = None, **changes: Any) -> None:
        self.options = _changed(options or PlasticityOptions(), changes)
        self.shared = named_parameters(shared)
        self.anchors: Params = {}
        self.blocks: Blocks = ()
        self.models = 0
        self.epoch = 0
        self._largest: tuple[float, ...] = ()
        self._plan: PullPlan | None = None
        self._single: Blocks = ()

    def __repr__(self) -> str:
        """One line with sizes, number of models and strength."""
        count, weights = len(self.shared), sum(value.numel() for value in self.shared.values())
        models = f"{self.models} model{'s' * (self.models != 1)} anchored"
        return (
            f"WeightPlasticity({count} tensor{'s' * (count != 1)}, {weights:,} weights, {models}, alpha {self.alpha:g})"
        )

    @property
    def alpha(self) -> float:
        """Strength in the present epoch; 0 in the warm-up."""
        return self.options.schedule.at(self.epoch)

    @property
    def warming_up(self) -> bool:
        """Whether anchors and pulls are still ignored."""
        return self.epoch < self.options.schedule.warm_up

    @property
    def importance(self) -> Params:
        """Diagonal of the accumulated importance by shared name; empty before the first anchor."""
        return {name: value for block in self.blocks for name, value in block.diagonal().items()}

    @operation
    def anchor(self, model: nn.Module, data: Data, targets: Tensor | None = None) -> Work[None]:
        """Anchor the shared weights at their present values, with their importance for a model that was just trained.

        In the warm-up this does nothing. Weights that the model does not use keep their anchor and importance, if
        `update` is `path`.

        Args:
            model: the model; it may use some of the shared parameters only, as a sampled path of a search does.
            data: inputs `[N, *input_shape]` of the validation set, or examples, or an iterable of `(x, y)` batches.
            targets: labels of the validation set.
        """
        if self.warming_up:
            return
        options = replace(self.options, seed=derived_seed(self.options.seed, self.epoch, self.models))
        names = names_in(model, self.shared)
        self._add((yield from measure_importance.work(model, names, data, targets, options)))

    def remember(self, importance: Mapping[str, Tensor]) -> None:
        """Anchor with an importance that was measured elsewhere, such as squared gradients of the training.

        In the warm-up this does nothing.

        Args:
            importance: by shared name, in the shapes of the parameters; missing ones are not used by the model.
        """
        if not self.warming_up:
            self._add(checked_importance(importance, self.shared, self.options))

    @torch.no_grad()
    def _add(self, new: Blocks) -> None:
        self._set_blocks(accumulate(self.blocks, new, self.shared, self.options))
        self.anchors = moved_anchors(self.anchors, self.shared, new, self.options)
        self.models += 1

    def pull(self, lr: float, only: Collection[str] | None = None) -> None:
        r"""Move the shared weights to the anchor: the proximal step of the penalty, after each optimiser step.

        $\theta \leftarrow (\theta + \eta\alpha F \hat\theta)/(1 + \eta\alpha F)$, stable for every α and η.

        Args:
            lr: η, the learning rate of the optimiser step before.
            only: names of the shared parameters to move, such as those of a sampled path (default: all).
        """
        scale, largest = self._scale(lr), max(self._largest, default=0.0)
        if scale == 0 or largest == 0:
            return
        if only is not None:
            for block, highest in zip(self.blocks, self._largest, strict=True):
                if highest > 0 and any(name in only for name in block.names):
                    block.contract(self.shared, self.anchors, min(scale, LIMIT / highest))
            return
        self._ready()
        if self._plan is not None:
            self._plan.contract(min(scale, LIMIT / largest))
        for block in self._single:
            block.contract(self.shared, self.anchors, min(scale, LIMIT / largest))

    def penalty(self, lr: float | None = None) -> Tensor:
        r"""$\frac{\alpha}{2} (\theta - \hat\theta)^\top F (\theta - \hat\theta)$, to be added to the loss.

        A gradient step multiplies $\theta - \hat\theta$ by $1 - \eta\alpha F$ and diverges if $\eta\alpha F > 2$ for a
        single weight; `pull` never does.

        Args:
            lr: η of the optimiser; with it, a warning says when the step diverges.
        """
        first, largest = next(iter(self.shared.values())), max(self._largest, default=0.0)
        if self.alpha == 0 or largest == 0:
            return first.new_zeros(())
        if lr is not None and self._scale(lr) * largest > 2:
            warnings.warn(
                f"the explicit penalty diverges: lr * alpha * max F is {self._scale(lr) * largest:.3g}, expected at "
                f"most 2; use pull(lr), or an alpha below {2 / (lr * largest):.3g}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._ready()
        energies = [block.energy(self.shared, self.anchors).to(first.device) for block in self.blocks]
        value = self.alpha / 2 * torch.stack(energies).sum()
        size = float(value.detach())
        if not math.isfinite(size):
            raise TrainingError(
                f"the explicit penalty is {size:g}, expected a finite number: the step diverged with alpha "
                f"{self.alpha:g}; use pull(lr), or an alpha below 2 / (lr * {largest:.3g})"
            )
        return value

    def end_epoch(self) -> None:
        """Count an epoch: for the warm-up, the schedule of α and `flush_every`."""
        self.epoch += 1
        if self.options.flush_every and self.epoch % self.options.flush_every == 0:
            self.flush()

    def flush(self) -> None:
        """Forget all models: no importance and no anchors."""
        self.anchors, self.models = {}, 0
        self._set_blocks(())

    def rebind(self, shared: Shared) -> None:
        """Pull other parameters from now on: those of the same names in a model that holds copies of shared weights.

        Args:
            shared: the second model or its parameters; more parameters than the shared ones are allowed.
        """
        self.shared, self._plan = matching(self.shared, shared), None

    def state_dict(self) -> Params:
        """Everything that changes, as tensors by name; for `torch.save` and for the tensors of a `State`."""
        state: Params = {"counts": torch.tensor([self.models, self.epoch])}
        state.update({f"anchor/{name}": value.clone() for name, value in self.anchors.items()})
        for block in self.blocks:
            names = SEPARATOR.join(block.names)
            state.update({f"block/{names}/{part}": value.clone() for part, value in block.tensors().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_dict`, bit for bit; the shared parameters and the options must be the same."""
        stored = [name.removeprefix("anchor/") for name in state if name.startswith("anchor/")]
        expected = {f"anchor/{name}": value for name, value in self.shared.items()} if stored else {}
        wrong = [name for name in stored if name not in self.shared]
        wrong += [name for name, value in expected.items() if name not in state or state[name].shape != value.shape]
        require(
            not wrong and "counts" in state,
            f"the stored state does not fit the shared parameters ({', '.join(wrong[:3]) or 'no counts'}); load it "
            f"into an object with the parameters with which it was saved",
            MismatchError,
        )
        self.models, self.epoch = (int(value) for value in state["counts"])
        self.anchors = {name: _copy(state[f"anchor/{name}"], self.shared[name]) for name in self.shared if stored}
        parts: dict[str, Params] = {}
        for key in (key for key in state if key.startswith("block/")):
            value, (names, _, part) = state[key], key.removeprefix("block/").rpartition("/")
            parts.setdefault(names, {})[part] = _copy(value, self.shared[names.split(SEPARATOR)[0]])
        self._set_blocks(
            tuple(block_from(names.split(SEPARATOR), tensors, self.shared) for names, tensors in parts.items())
        )

    def _set_blocks(self, blocks: Blocks) -> None:
        order = {name: number for number, name in enumerate(self.shared)}
        blocks = tuple(sorted(blocks, key=lambda block: order[block.names[0]]))  # sums do not depend on the history
        known = dict(zip(map(id, self.blocks), self._largest, strict=True))
        largest = tuple(known[id(block)] if id(block) in known else block.largest() for block in blocks)
        wrong = [block.names[0] for block, value in zip(blocks, largest, strict=True) if not math.isfinite(value)]
        require(not wrong, f"the importance of {', '.join(wrong[:1])} is not finite; check the model", MismatchError)
        self.blocks, self._largest, self._plan = blocks, largest, None

    def _scale(self, lr: float) -> float:
        require(
            math.isfinite(lr) and lr >= 0,
            f"lr is {lr}, expected a finite number >= 0; give the learning rate of the optimiser step",
        )
        return self.alpha * lr

    def _ready(self) -> None:
        """Move anchors and importance to the devices of the weights, and plan the steps, unless it was done before."""
        if self._plan is not None and self._plan.fits(self.shared):
            return
        self.anchors = {name: anchor.to(self.shared[name]) for name, anchor in self.anchors.items()}
        blocks = [block.on(self.shared[block.names[0]].device) for block in self.blocks]
        kinds = Counter((block.values.device, block.values.dtype) for block in blocks if self._plannable(block))
        kind = kinds.most_common(1)[0][0] if kinds else None
        planned = [b for b in blocks if self._plannable(b) and (b.values.device, b.values.dtype) == kind]
        self._plan = PullPlan(planned, self.shared, self.anchors) if planned else None
        moved = {block.names: block for block in (self._plan.blocks if self._plan else ())}
        self.blocks = tuple(moved.get(block.names, block) for block in blocks)
        self._single = tuple(
            block
            for block, largest in zip(self.blocks, self._largest, strict=True)
            if block.names not in moved and largest > 0
        )

    def _plannable(self, block: PenaltyBlock) -> TypeGuard[DiagonalBlock]:
        if not isinstance(block, DiagonalBlock):
            return False
        weight = self.shared[block.name]
        return weight.is_contiguous() and weight.dtype == block.values.dtype


def _copy(value: Tensor, like: Tensor) -> Tensor:
    return value.detach().to(like.device, copy=True)


def _changed(options: PlasticityOptions, changes: Mapping[str, Any]) -> PlasticityOptions:
    known = [field.name for field in fields(options)]
    unknown = sorted(set(changes) - set(known))
    require(not unknown, f"plasticity has no option {', '.join(unknown)}; its options are {', '.join(known)}")
    return replace(options, **changes)
