r"""The posterior of a linearized network: means, variances, samples and densities in the shape of the targets.

Notation: N training points, M new ones, K targets, C outputs of the network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work, operation
from nearkin.core.state import State
from nearkin.core.types import Params
from nearkin.fisher.vectors import unflat
from nearkin.transfer.cholesky import below, cholesky, log_determinant
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.iterative.large import Large
from nearkin.transfer.iterative.large_weight import LargeWeight
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.solver import SPACES, Solver
from nearkin.transfer.targets import Layout, checked_noise, checked_targets, noise_rows
from nearkin.transfer.weight_space import WeightSpace


@dataclass(frozen=True, eq=False)
class Posterior:
    """What a linearized network says of new inputs, given targets; made by `gaussian`.

    Attributes:
        prior: the linearized network with its scales.
        layout: how targets lie in rows.
        space: `function`, `weight`, `large` or `large-weight`.
        solver: the solved process.
        shift: `[K]`, taken off the targets before anything else.
        num_points: N.
    """

    prior: Prior
    layout: Layout
    space: str
    solver: Solver
    shift: Tensor
    num_points: int

    @property
    def linearized(self) -> Linearized:
        """The network."""
        return self.prior.linearized

    @property
    def hyper(self) -> Hyper:
        """Noise, scales and mean."""
        return self.prior.hyper

    @property
    def log_evidence(self) -> float:
        """The log probability of the training targets; with a constant mean, at its best constants."""
        return self.solver.log_evidence

    @property
    def jitter(self) -> float:
        """What had to be added to the kernel's diagonal."""
        return self.solver.jitter

    def predict(self, x: Tensor, observed: bool = False, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances `[M, K]` of the function at new inputs.

        Args:
            x: `[M, *input_shape]`.
            observed: whether variances are those of observations, with `hyper.noise` on top.
            noise: known variances of the observations `[M]` or `[M, K]`, on top of that.
        """
        x = self.linearized.inputs(x)
        means, variances = self.solver.moments(x)
        spread = self.layout.spread(variances)
        return self._raised(x, means), spread + self._noise(len(x), observed, noise)

    def mean(self, x: Tensor) -> Tensor:
        """Means `[M, K]` alone, at less cost."""
        x = self.linearized.inputs(x)
        return self._raised(x, self.solver.means(x))

    def covariance(self, x: Tensor) -> Tensor:
        """Of the function: `[K, M, M]`, one a target; for `outputs="all"` `[M·K, M·K]`."""
        found = self.solver.covariance(self.linearized.inputs(x))
        return found[0] if self.layout.joint else found.expand(self.layout.num_targets, -1, -1)

    def sample(self, x: Tensor, count: int, generator: Generator, observed: bool = False) -> Tensor:
        """Functions drawn from the posterior `[count, M, K]`; observations of them if `observed`."""
        require(count >= 1, f"a sample has one function or more, got count={count}")
        mean, covariance = self.mean(x), self.solver.covariance(self.linearized.inputs(x))
        values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        roots = vectors * values.clamp_min(0).sqrt()[:, None, :]  # a process of few weights has a singular covariance
        columns = 1 if self.layout.joint or self.layout.apart else self.layout.num_targets
        shape = (count, *roots.shape[:2], columns)
        drawn = roots @ torch.randn(shape, generator=generator, dtype=roots.dtype)
        found = mean + torch.stack([self.layout.back(one) for one in drawn])
        if observed:
            noise = torch.randn(found.shape, generator=generator, dtype=found.dtype)
            found = found + self._noise(len(x), True, None).sqrt() * noise
        return found

    def log_prob(self, x: Tensor, y: Tensor, joint: bool = False, noise: Tensor | None = None) -> Tensor:
        """Log densities of observations: of each `[M, K]`, or of all together `[]`.

        Args:
            x: `[M, *input_shape]`.
            y: `[M]` or `[M, K]`.
            joint: whether the points' covariance counts, and all are judged together.
            noise: known variances of the observations, on top of `hyper.noise`.
        """
        y = self._checked(x, y)
        if not joint:
            mean, variance = self.predict(x, observed=True, noise=noise)
            require(bool((variance > 0).all()), "an observation without variance has no density; give a noise above 0")
            return -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())
        covariance = self.solver.covariance(self.linearized.inputs(x))
        residual = (y - self.mean(x)).reshape(1, -1) if self.layout.joint else (y - self.mean(x)).t()
        extra = self._noise(len(x), True, noise).expand(len(x), self.layout.num_targets)
        extra = extra.reshape(1, -1) if self.layout.joint else extra.t()
        factor, _ = cholesky(covariance + torch.diag_embed(extra), "the predictive covariance")
        fit = below(factor, residual[:, :, None]).square().sum() + log_determinant(factor).sum()
        return -0.5 * (fit + residual.numel() * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Means and variances `[N, K]` of every training observation from all others, in closed form."""
        if not isinstance(self.solver, FunctionSpace):
            raise OptionError(f"{self.space} space keeps no single points; use space='function' to leave one out")
        means, variances = self.solver.leave_one_out()
        found = self.layout.back(means) + self.shift
        if self.hyper.mean == "network":
            found = found + self.layout.network(self.linearized.mean(self.solver.x))
        return found, self.layout.spread(variances)

    @operation
    def extended(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work["Posterior"]:
        """The posterior given further points, without starting again."""
        x, y = self.linearized.inputs(x), self._checked(x, y)
        known = checked_noise(noise, len(x), self.layout.num_targets)
        if self.layout.apart:
            known = known.expand(-1, self.layout.num_targets)
        require(
            self.layout.joint or known.shape[1] == 1 or self.layout.apart,
            "these targets share one covariance, and noise of their own would part them; fit anew with all points",
            MismatchError,
        )
        parts = point_rows(self.linearized, self.hyper, self.layout, x, y - self.shift, known)
        solver = yield from self.solver.extended(x, *parts)
        return replace(self, solver=solver, num_points=self.num_points + len(x))

    def step(self) -> Params:
        """The mean of the weights' step v by name; for one vector of weights (`outputs` not `"sum"`, or C = 1).

        With a mean of zero or the network's, the posterior mean is that mean plus J v.
        """
        single = self.layout.outputs != "sum" or self.layout.num_outputs == 1
        require(
            single and self.solver.weights.shape[0] * self.solver.weights.shape[2] == 1,
            "every target has weights of its own here; linearize with outputs='all' or one output for a single step",
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
        """The posterior without its network; `restored` takes it back."""
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

    def _raised(self, x: Tensor, means: Tensor) -> Tensor:
        """Row means `[F, S, T]` as means of targets `[M, K]`, with what was taken off put back."""
        basis = self.layout.basis(len(x), self.hyper.mean)
        found = self.layout.back(means + basis @ self.solver.constants) + self.shift
        return found + self.layout.network(self.linearized.mean(x)) if self.hyper.mean == "network" else found

    def _noise(self, count: int, observed: bool, noise: Tensor | None) -> Tensor:
        return checked_noise(noise, count, self.layout.num_targets) + (self.hyper.noise if observed else 0.0)

    def _checked(self, x: Tensor, y: Tensor) -> Tensor:
        y = checked_targets(y, len(x))
        wanted = self.layout.num_targets
        require(y.shape[1] == wanted, f"targets have {y.shape[1]} columns, the posterior has {wanted}", MismatchError)
        return y


def restored(linearized: Linearized, state: State) -> Posterior:
    """A posterior from its state and its network; refused if the network is another."""
    facts: Mapping[str, Any] = state.facts
    require(
        facts.get("fingerprint") == linearized.fingerprint,
        "the posterior was made with another network, other free weights or other outputs; linearize that one again",
        MismatchError,
    )
    prior = Prior(linearized, Hyper.of(facts["hyper"]))
    layout = Layout(linearized.outputs, facts["num_outputs"], facts["num_targets"], facts["apart"])
    solver = SPACES[facts["space"]].restored(prior, state.section("solver"))
    return Posterior(prior, layout, facts["space"], solver, state.tensors["shift"], facts["num_points"])


def point_rows(
    linearized: Linearized, hyper: Hyper, layout: Layout, x: Tensor, y: Tensor, known: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Noise `[F, R]`, constants H `[R, Q]` and targets `[F, R, T]` of some points."""
    if hyper.mean == "network":
        y = y - layout.network(linearized.mean(x))
    return noise_rows(layout, known) + hyper.noise, layout.basis(len(x), hyper.mean), layout.rows(y)
