r"""The posterior of a linearized network: means, variances, samples and densities in the shape of the targets.

Notation: N training points, M new ones, K targets, C outputs of the network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work, operation
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.fisher.vectors import unflat
from nearkin.transfer.cholesky import cholesky, log_determinant, solve_lower
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.iterative.large import Large
from nearkin.transfer.iterative.large_weight import LargeWeight
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.targets import RowLayout, checked_noise, checked_targets
from nearkin.transfer.weight_space import WeightSpace

Solver: TypeAlias = FunctionSpace | WeightSpace | Large | LargeWeight

SPACES: Mapping[str, type[Solver]] = {
    "function": FunctionSpace,
    "weight": WeightSpace,
    "large": Large,
    "large-weight": LargeWeight,
}


@dataclass(frozen=True, eq=False)
class Posterior:
    """The predictive distribution of a linearized network given targets; returned by `gaussian`.

    Attributes:
        prior: the linearized network with its scales.
        layout: how targets are arranged in rows.
        space: `function`, `weight`, `large` or `large-weight`.
        solver: the solved process.
        shift: `[K]`, subtracted from the targets before the solve.
        num_points: N.
    """

    prior: Prior
    layout: RowLayout
    space: str
    solver: Solver
    shift: Tensor
    num_points: int

    @property
    def linearized(self) -> Linearized:
        """The linearized network of the prior."""
        return self.prior.linearized

    @property
    def hyper(self) -> Hyper:
        """Noise, scales and mean."""
        return self.prior.hyper

    @property
    def log_evidence(self) -> float:
        """The log probability of the training targets; with a constant mean, at the fitted constants."""
        return self.solver.log_evidence

    @property
    def jitter(self) -> float:
        """The number that was added to the kernel's diagonal to make it positive definite."""
        return self.solver.jitter

    def predict(self, x: Tensor, observed: bool = False, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances `[M, K]` of the function at new inputs.

        Args:
            x: `[M, *input_shape]`.
            observed: whether variances are those of observations, which include `hyper.noise`.
            noise: known variances of the observations `[M]` or `[M, K]`, which are added.
        """
        x = self.linearized.inputs(x)
        means, variances = self.solver.moments(x)
        return self._target_means(x, means), self.layout.spread(variances) + self._noise(len(x), observed, noise)

    def mean(self, x: Tensor) -> Tensor:
        """Means `[M, K]` without variances, at lower cost."""
        x = self.linearized.inputs(x)
        return self._target_means(x, self.solver.means(x))

    def covariance(self, x: Tensor) -> Tensor:
        """Covariances of the function, `[K, M, M]` for the K targets; for `outputs="all"` `[M·K, M·K]`."""
        covariance = self.solver.covariance(self.linearized.inputs(x))
        return covariance[0] if self.layout.joint else covariance.expand(self.layout.num_targets, -1, -1)

    def sample(self, x: Tensor, count: int, generator: Generator, observed: bool = False) -> Tensor:
        """Functions drawn from the posterior `[count, M, K]`; observations of them if `observed`."""
        require(count >= 1, f"count is the number of functions, 1 or more, got {count}")
        mean, covariance = self.mean(x), self.solver.covariance(self.linearized.inputs(x))
        values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        roots = vectors * values.clamp_min(0).sqrt()[:, None, :]  # a process of few weights has a singular covariance
        columns = 1 if self.layout.joint or self.layout.apart else self.layout.num_targets
        shape = (count, *roots.shape[:2], columns)
        deviations = roots @ torch.randn(shape, generator=generator, dtype=roots.dtype)
        functions = mean + torch.stack([self.layout.back(rows) for rows in deviations])
        if observed:
            noise = torch.randn(functions.shape, generator=generator, dtype=functions.dtype)
            functions = functions + self._noise(len(x), True, None).sqrt() * noise
        return functions

    def log_prob(self, x: Tensor, y: Tensor, joint: bool = False, noise: Tensor | None = None) -> Tensor:
        """Log densities of observations: of each `[M, K]`, or the joint one `[]`.

        Args:
            x: `[M, *input_shape]`.
            y: `[M]` or `[M, K]`.
            joint: whether to return the joint density, with the covariances of the points.
            noise: known variances of the observations, added to `hyper.noise`.
        """
        y = self._checked(x, y)
        if not joint:
            mean, variance = self.predict(x, observed=True, noise=noise)
            require(bool((variance > 0).all()), "an observation has variance 0 and no density; give a noise above 0")
            return -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())
        covariance = self.solver.covariance(self.linearized.inputs(x))
        residual = (y - self.mean(x)).reshape(1, -1) if self.layout.joint else (y - self.mean(x)).t()
        extra = self._noise(len(x), True, noise).expand(len(x), self.layout.num_targets)
        extra = extra.reshape(1, -1) if self.layout.joint else extra.t()
        factor, _ = cholesky(covariance + torch.diag_embed(extra), "the predictive covariance")
        fit = solve_lower(factor, residual[:, :, None]).square().sum() + log_determinant(factor).sum()
        return -0.5 * (fit + residual.numel() * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Means and variances `[N, K]` of every training observation from all others, in closed form."""
        if not isinstance(self.solver, FunctionSpace):
            raise OptionError(
                f"got a posterior in {self.space} space, leave-one-out needs space='function'; solve it again there"
            )
        means, variances = self.solver.leave_one_out()
        targets = self.layout.back(means) + self.shift
        if self.hyper.mean == "network":
            targets = targets + self.layout.network(self.linearized.mean(self.solver.x))
        return targets, self.layout.spread(variances)

    @operation
    def extended(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work["Posterior"]:
        """The posterior given further points; the solve so far is reused."""
        x, y = self.linearized.inputs(x), self._checked(x, y)
        known = checked_noise(noise, len(x), self.layout.num_targets)
        if self.layout.apart:
            known = known.expand(-1, self.layout.num_targets)
        require(
            self.layout.joint or known.shape[1] == 1 or self.layout.apart,
            "got noise of its own for each target, but these targets share one covariance; fit again with all points",
            MismatchError,
        )
        points = self.layout.points(self.linearized, self.hyper, x, y - self.shift, known)
        solver = yield from self.solver.extended(points)
        return replace(self, solver=solver, num_points=self.num_points + len(x))

    def step(self) -> Params:
        """The posterior mean of the weight step v by name, for one vector of weights (`outputs` not `"sum"`, or C = 1).

        With a mean of zero or of the network, the posterior mean is that mean plus J v.
        """
        single = self.layout.outputs != "sum" or self.layout.num_outputs == 1
        require(
            single and self.solver.weights.shape[0] * self.solver.weights.shape[2] == 1,
            "got a posterior where every target has weights of its own, expected one step for all; linearize with "
            "outputs='all' or one output",
            MismatchError,
        )
        scales = self.prior.weight_scales()
        if isinstance(self.solver, WeightSpace | LargeWeight):
            return unflat(scales.sqrt() * self.solver.weights[0, :, 0], self.linearized.params)
        assert isinstance(self.solver, FunctionSpace | Large)
        operator = self.linearized.jacobian_operator(self.solver.x)
        weights, size = self.solver.weights[0, :, 0], self.layout.num_outputs
        if not self.layout.joint:
            wide = torch.zeros(len(weights), size).to(weights)
            wide[:, self.layout.outputs if isinstance(self.layout.outputs, int) else 0] = weights
            weights = wide.flatten()
        pulled = operator.mT.matmul(weights.to(operator.dtype)).double()
        return unflat(scales * pulled, self.linearized.params)

    def state(self) -> State:
        """The posterior without its network, as input of `restored`."""
        facts = {
            "hyper": self.hyper.facts(),
            "space": self.space,
            "num_outputs": self.layout.num_outputs,
            "num_targets": self.layout.num_targets,
            "apart": self.layout.apart,
            "num_points": self.num_points,
            "fingerprint": self.linearized.fingerprint,
        }
        return State({"shift": self.shift, **{f"solver/{n}": t for n, t in self.solver.tensors().items()}}, facts)

    def _target_means(self, x: Tensor, means: Tensor) -> Tensor:
        """Row means `[F, S, T]` as means of the targets `[M, K]`, with constants, shift and network outputs added."""
        basis = self.layout.basis(len(x), self.hyper.mean)
        targets = self.layout.back(means + basis @ self.solver.constants) + self.shift
        return targets + self.layout.network(self.linearized.mean(x)) if self.hyper.mean == "network" else targets

    def _noise(self, count: int, observed: bool, noise: Tensor | None) -> Tensor:
        return checked_noise(noise, count, self.layout.num_targets) + (self.hyper.noise if observed else 0.0)

    def _checked(self, x: Tensor, y: Tensor) -> Tensor:
        y, size = checked_targets(y, len(x)), self.layout.num_targets
        require(y.shape[1] == size, f"targets have {y.shape[1]} columns, the posterior has {size}", MismatchError)
        return y


def restored(linearized: Linearized, state: State) -> Posterior:
    """A posterior from its state and its network; refused if the state belongs to another network."""
    facts: Mapping[str, Any] = state.facts
    require(
        facts.get("fingerprint") == linearized.fingerprint,
        "the posterior belongs to another network, other free weights or other outputs; linearize that network again",
        MismatchError,
    )
    prior = Prior(linearized, Hyper.of(facts["hyper"]))
    layout = RowLayout(linearized.outputs, facts["num_outputs"], facts["num_targets"], facts["apart"])
    solver = SPACES[facts["space"]].restored(prior, state.section("solver"))
    return Posterior(prior, layout, facts["space"], solver, state.tensors["shift"], facts["num_points"])
