r"""A linearized network as a Gaussian process: the posterior given targets, in the cheaper space.

Notation: N training points, K targets, C outputs of the network, R rows of the kernel (`kernel`), D features.
"""

from collections.abc import Callable
from functools import partial
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
from nearkin.transfer.posterior import SPACES, Posterior, Solver
from nearkin.transfer.targets import PointRows, checked_noise, checked_targets, row_layout
from nearkin.transfer.weight_space import weight_space

Space: TypeAlias = Literal["auto", "function", "weight", "large", "large-weight"]

DENSE = 6000  # largest number of rows or features for a Cholesky factor; above it, conjugate gradients are used


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
        hyper: noise, scales and mean; learned by marginal likelihood if None.
        noise: known variances of the observations `[N]` or `[N, K]`, added to `hyper.noise`.
        space: `function` factors `[R, R]`, `weight` factors `[D, D]`. `large` and `large-weight` factor no matrix: they
            use conjugate gradients over the rows or over the weights. `auto` takes the cheaper of the first two if its
            matrix is small enough. Otherwise it takes `large-weight` if D ≤ R: its vectors are shorter, which was
            measured to compensate for twice the steps and to save a third of the memory (10,801 weights, 30,000 rows).
            With more weights than rows (803,601 and 30,000) `large` took three fifths of its time.
        seed: of the random estimates of the last two, and of the points that hyper-parameters are learned on if there
            are too many.

    >>> from nearkin.transfer.linearized import linearize
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
    >>> posterior = gaussian(linearize(net), x, y, Hyper(noise=1.0, mean="zero"))
    >>> mean, variance = posterior.predict(torch.tensor([[3.0]]))  # of a weight with precision 1 + 5
    >>> round(float(mean), 6), round(float(variance), 6), posterior.space
    (5.0, 1.5, 'weight')
    """
    x = linearized.inputs(x)
    y = checked_targets(y, len(x))
    known = checked_noise(noise, len(x), y.shape[1])
    layout = row_layout(linearized, x, y, known)
    if hyper is None:
        hyper = yield from learn.work(linearized, x, y, noise=noise, how=Learning(seed=seed))
    prior = Prior(linearized, hyper)
    shift = y.mean(0) if hyper.mean == "constant" else torch.zeros(y.shape[1]).double()
    points = layout.points(linearized, hyper, x, y - shift, known)
    num_features = prior.num_features(layout.num_outputs)
    chosen = _chosen_space(space, num_features, points.noise)
    yield Note(f"{len(points.basis):,} rows and {num_features:,} features: {chosen} space")
    solvers: dict[str, Callable[[Prior, PointRows], Work[Solver]]] = {
        "function": function_space,
        "weight": weight_space,
        "large": partial(large, seed=seed),
        "large-weight": partial(large_weight, seed=seed),
    }
    solver = yield from solvers[chosen](prior, points)
    return Posterior(prior, layout, chosen, solver, shift, len(x))


def _chosen_space(space: str, num_features: int, noise: Tensor) -> str:
    if space != "auto":
        if space not in SPACES:
            raise OptionError(f"space is auto, {', '.join(SPACES)}, got {space!r}")
        return space
    rows = noise.shape[1]
    cheaper = 2 * num_features <= rows or rows > DENSE  # features cost more than the kernel of as many rows
    if num_features < rows and cheaper and num_features <= DENSE and bool((noise > 0).all()):
        return "weight"
    if rows <= DENSE:
        return "function"
    return "large-weight" if num_features <= rows else "large"
