r"""A linearized network as a Gaussian process: the posterior given targets, in whichever space is smaller.

Notation: N training points, K targets, C outputs of the network, R rows of the kernel (`kernel`), D features.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import OptionError
from nearkin.core.events import Note, Work, operation
from nearkin.transfer.function_space import function_space
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.iterative.large import large
from nearkin.transfer.iterative.large_weight import large_weight
from nearkin.transfer.kernel import Prior
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.marginal_likelihood import learn
from nearkin.transfer.posterior import Posterior, point_rows
from nearkin.transfer.solver import SPACES, Solver
from nearkin.transfer.targets import Layout, checked_noise, checked_targets, layout_of
from nearkin.transfer.weight_space import weight_space

Space: TypeAlias = Literal["auto", "function", "weight", "large", "large-weight"]

DENSE = 6000  # rows or features of a matrix that is factored; above, conjugate gradients


@operation
def gaussian(
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    hyper: Hyper | None = None,
    noise: Tensor | None = None,
    space: Space = "auto",
    seed: int = 0,
) -> Work[Posterior]:
    """The posterior of a linearized network given targets.

    Args:
        linearized: the network.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`; for `outputs="all"` K is C.
        hyper: noise, scales and mean; learned by evidence if None.
        noise: known variances of the observations `[N]` or `[N, K]`, on top of `hyper.noise`.
        space: `function` factors `[R, R]`, `weight` factors `[D, D]`; `large` and `large-weight` factor nothing and
            take conjugate gradients over the rows or over the weights. `auto` takes the cheaper of the first two if it
            is small enough. Else it takes `large-weight` where D ≤ R: its vectors are shorter, which was measured to
            make up for twice the steps and to save a third of the memory (10,801 weights, 30,000 rows); with more
            weights than rows (803,601 and 30,000) `large` took three fifths of its time.
        seed: of what the last two estimate, and of the points that hyper-parameters are learned on if there are many.

    >>> from nearkin.transfer.linearized import linearize
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
    >>> said = gaussian(linearize(net), x, y, Hyper(noise=1.0, mean="zero"))
    >>> mean, variance = said.predict(torch.tensor([[3.0]]))  # of a weight with precision 1 + 5
    >>> round(float(mean), 6), round(float(variance), 6), said.space
    (5.0, 1.5, 'weight')
    """
    x = linearized.inputs(x)
    y = checked_targets(y, len(x))
    known = checked_noise(noise, len(x), y.shape[1])
    layout = layout_of(linearized, x, y, known)
    if hyper is None:
        hyper = yield from learn.work(linearized, x, y, noise=noise, how=Learning(seed=seed))
    prior = Prior(linearized, hyper)
    shift = y.mean(0) if hyper.mean == "constant" else torch.zeros(y.shape[1]).double()
    parts = point_rows(linearized, hyper, layout, x, y - shift, known)
    chosen = _space(space, prior, layout, parts[0])
    yield Note(f"{parts[0].shape[1]:,} rows and {prior.num_features(layout.num_outputs):,} features: {chosen} space")
    solver: Solver
    if chosen == "large":
        solver = yield from large(prior, x, *parts, seed=seed)
    elif chosen == "large-weight":
        solver = yield from large_weight(prior, x, *parts, seed=seed)
    elif chosen == "weight":
        solver = yield from weight_space(prior, x, *parts)
    else:
        solver = yield from function_space(prior, x, *parts)
    return Posterior(prior, layout, chosen, solver, shift, len(x))


def _space(space: str, prior: Prior, layout: Layout, noise: Tensor) -> str:
    if space != "auto":
        if space not in SPACES:
            raise OptionError(f"space is auto, {', '.join(SPACES)}, got {space!r}")
        return space
    rows, size = noise.shape[1], prior.num_features(layout.num_outputs)
    gained = 2 * size <= rows or rows > DENSE  # features cost more to make than the kernel of as many rows
    if size < rows and gained and size <= DENSE and bool((noise > 0).all()):
        return "weight"
    if rows <= DENSE:
        return "function"
    return "large-weight" if size <= rows else "large"
