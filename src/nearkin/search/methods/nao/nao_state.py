"""States of NAO: model and optimiser, with shared weights and a pool, or with trials."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nearkin.core.state import State, copied, prefixed
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.shared_state import capture_shared, restore_shared
from nearkin.search.methods.nao.architecture_model import ArchitectureModel
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors
from nearkin.search.methods.sampling import Trials
from nearkin.search.plasticity.forgetting_control import ForgettingControl
from nearkin.search.searcher import ScoredGenotype


@dataclass
class NaoState:
    """State of the search with shared weights.

    Attributes:
        seed: seed of all random numbers.
        net: network with the shared weights.
        weight_optimiser: SGD on the shared weights.
        control: forgetting of every epoch, and plasticity.
        model: encoder, predictor and decoder.
        model_optimiser: Adam on the model.
        pool: genotypes that are trained in this round.
        ranked: genotypes of the last round with their scores, best first.
        done: number of steps.
        evaluations: number of genotypes that were measured.
        figures: last training losses, and the mean score of the last round.
    """

    seed: int
    net: nn.Module
    weight_optimiser: torch.optim.Optimizer
    control: ForgettingControl
    model: ArchitectureModel
    model_optimiser: torch.optim.Optimizer
    pool: list[Genotype]
    ranked: list[ScoredGenotype] = field(default_factory=list)
    done: int = 0
    evaluations: int = 0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class NaoTrials:
    """State of the search with an objective.

    Attributes:
        trials: measured genotypes.
        model: encoder, predictor and decoder.
        model_optimiser: Adam on the model.
        queue: proposed genotypes that are not measured yet.
    """

    trials: Trials
    model: ArchitectureModel
    model_optimiser: torch.optim.Optimizer
    queue: list[Genotype] = field(default_factory=list)


def capture_model(state: NaoState | NaoTrials) -> dict[str, Tensor]:
    """Tensors of model and optimiser."""
    moments = optimiser_tensors(state.model_optimiser)
    return copied({**prefixed("model", state.model.state_dict()), **prefixed("model_optimiser", moments)})


def restore_model(state: NaoState | NaoTrials, saved: State) -> None:
    """The inverse of `capture_model`, in place."""
    state.model.load_state_dict(saved.section("model"))
    load_optimiser(state.model_optimiser, saved.section("model_optimiser"))


def capture_state(state: NaoState) -> State:
    """Copy the whole state."""
    shared = capture_shared(state)
    lists = {"pool": texts(state.pool), "ranked": [scored.to_dict() for scored in state.ranked]}
    return State({**shared.tensors, **capture_model(state)}, {**shared.facts, **lists})


def restore_state(fresh: NaoState, saved: State) -> NaoState:
    """Load a captured state into a new one that was made with the same seed."""
    restore_shared(fresh, saved)
    restore_model(fresh, saved)
    fresh.pool = genotypes_of(saved.facts["pool"])
    fresh.ranked = [ScoredGenotype.from_dict(facts) for facts in saved.facts["ranked"]]
    return fresh


def texts(genotypes: Sequence[Genotype]) -> list[str]:
    """Genotypes as text."""
    return list(map(str, genotypes))


def genotypes_of(lines: Sequence[str]) -> list[Genotype]:
    """The inverse of `texts`."""
    return list(map(Genotype.parse, lines))
