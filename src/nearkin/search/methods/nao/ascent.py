r"""Gradient ascent in the embedding: new genotypes that are predicted to be better than measured ones.

A step moves every row of an embedding E along the gradient of the predicted score f and back to length 1:
$e_t ← \mathrm{unit}(e_t + \eta\,\mathrm{unit}(g_t))$ with $g_t = \partial f / \partial e_t$. For a small η the
predicted score rises: its derivative is $\sum_t \|P_t g_t\|^2 / \|g_t\| \ge 0$, where $P_t$ projects onto the tangent
of the sphere. The embeddings of all steps are decoded together.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.nao.architecture_model import ArchitectureModel
from nearkin.search.methods.nao.model_training import ModelOptions, decisions_of
from nearkin.search.spaces.base import Space

DRAWS = 200
"""Number of draws from a space in a row that may be known before no more are drawn."""


def ascend(model: ArchitectureModel, embedding: Tensor, rate: float) -> Tensor:
    """Embedding `[M, D, H]` after a step of length `rate` towards higher predicted scores."""
    start = embedding.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.predict(start).sum(), start)
    return F.normalize(start.detach() + rate * F.normalize(gradient, dim=-1), dim=-1)


def propose_genotypes(
    model: ArchitectureModel,
    space: Space,
    best: Sequence[Genotype],
    known: Collection[str],
    count: int,
    options: ModelOptions,
    rng: Generator,
) -> list[Genotype]:
    """New genotypes of a space, different from known ones and from each other.

    The ascent starts from the best genotypes. The embeddings of all steps are decoded, and the first new genotypes are
    kept, those of a step in the order of the starts. The space draws what is missing.

    Args:
        model: trained model.
        space: space of the genotypes; its limits are respected.
        best: measured genotypes, best first.
        known: keys (`Space.unique_key`) of architectures that are not new.
        count: number of new genotypes; fewer are returned if the space seems to have no more.
        options: starts, steps and rate of the ascent.
        rng: generator of the draws.
    """
    new: dict[str, Genotype] = {}
    for genotype in _ascent(model, best[: options.ascent_starts], options):
        if len(new) == count:
            break
        if space.contains(genotype) and (key := space.unique_key(genotype)) not in known:
            new.setdefault(key, genotype)
    drawn = draw_genotypes(space, {*known, *new}, count - len(new), rng)
    return [*new.values(), *drawn]


def _ascent(model: ArchitectureModel, starts: Sequence[Genotype], options: ModelOptions) -> Iterator[Genotype]:
    """Decoded genotypes of all steps."""
    with torch.no_grad():
        embedding = model.encode(decisions_of(model.sequence, starts))
    path = []
    for _ in range(options.ascent_steps):
        embedding = ascend(model, embedding, options.ascent_rate)
        path.append(embedding)
    yield from map(model.sequence.genotype, model.decode(torch.cat(path)).tolist())


def draw_genotypes(space: Space, known: Collection[str], count: int, rng: Generator) -> list[Genotype]:
    """Different random genotypes of a space that are not known; fewer after `DRAWS` known ones in a row."""
    new: dict[str, Genotype] = {}
    repeats = 0
    while len(new) < count and repeats < DRAWS:
        genotype = space.sample(rng)
        key = space.unique_key(genotype)
        repeats = repeats + 1 if key in known or key in new else 0
        if not repeats:
            new[key] = genotype
    return list(new.values())
