r"""Task2Vec: embeddings of tasks from the diagonal Fisher information of one probe network.

Notation: F, G embeddings of two tasks; each entry is the mean of the diagonal over the weights of one filter.

Achille, Lam, Tewari, Ravichandran, Maji, Fowlkes, Soatto and Perona (2019, "Task2Vec: Task Embedding for
Meta-Learning"). Both diagonals must come from one network, without its head.
"""

import torch

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.heads import split

ALPHA = 0.15  # weight of the trivial task in the asymmetric form, as in the paper


def task2vec_embedding(fisher: FisherDiagonal, head: str | None = None) -> Params:
    """Mean of the diagonal over each filter's weights, by layer: weights `[K, ...]` give `[K]` in float64.

    Args:
        fisher: of the probe network on a task.
        head: name of the layer to leave out, since its width differs between tasks; biases and norms are always left
            out.

    >>> fisher = FisherDiagonal({"0.weight": torch.tensor([[1.0, 3.0]]), "0.bias": torch.ones(1)}, "observed", 10)
    >>> task2vec_embedding(fisher)
    {'0.weight': tensor([2.], dtype=torch.float64)}
    """
    values = fisher.values if head is None else split(fisher.values, head)[0]
    embedding = {name: value.double().cpu().flatten(1).mean(1) for name, value in values.items() if value.dim() >= 2}
    require(
        bool(embedding),
        "the Fisher diagonal has no weight with two axes or more, expected one; measure the weights of layers",
        DataError,
    )
    entries = torch.cat(list(embedding.values()))
    require(
        bool(entries.isfinite().all()) and float(entries.min()) >= 0 and float(entries.max()) > 0,
        "a Fisher diagonal is NaN, below 0 or zero everywhere, expected >= 0 and > 0 somewhere; measure it again",
        DataError,
    )
    return embedding


def task2vec_distance(f: FisherDiagonal, g: FisherDiagonal, *, head: str | None = None) -> float:
    r"""The symmetric distance of two tasks; in [0, 1], smaller is nearer.

    $$d(F, G) = 1 - \cos\left(\frac{F}{F + G}, \frac{G}{F + G}\right)$$

    Filters with a value of zero for both tasks are left out.

    Args:
        f: of one task.
        g: of the other, from the same network.
        head: name of the network's last layer, which is left out.

    >>> f = FisherDiagonal({"w": torch.tensor([[1.0], [0.0]])}, "observed", 1)
    >>> g = FisherDiagonal({"w": torch.tensor([[0.0], [1.0]])}, "observed", 1)
    >>> task2vec_distance(f, f), task2vec_distance(f, g)
    (0.0, 1.0)
    """
    return embedding_distance(task2vec_embedding(f, head), task2vec_embedding(g, head))


def task2vec_asymmetric(
    f: FisherDiagonal,
    g: FisherDiagonal,
    *,
    head: str | None = None,
    alpha: float = ALPHA,
    trivial: FisherDiagonal | None = None,
) -> float:
    r"""The asymmetric distance $d(F \to G) = d(F, G) - \alpha\, d(F, t)$; source -> target, smaller is nearer.

    A source far from the trivial task t is complex, and transfer from it is easier than d alone predicts.

    Args:
        f: of the source.
        g: of the target.
        head: name of the network's last layer, which is left out.
        alpha: weight of the source's complexity; 0 gives the symmetric distance.
        trivial: of the trivial task t (default: in every layer the mean of the source's embedding for all filters).

    >>> f = FisherDiagonal({"w": torch.tensor([[2.0], [2.0]])}, "observed", 1)
    >>> g = FisherDiagonal({"w": torch.tensor([[4.0], [0.0]])}, "observed", 1)
    >>> task2vec_asymmetric(f, g) > task2vec_asymmetric(g, f)  # g is the more complex source
    True
    """
    t = None if trivial is None else task2vec_embedding(trivial, head)
    return embedding_asymmetric(task2vec_embedding(f, head), task2vec_embedding(g, head), alpha=alpha, trivial=t)


def embedding_asymmetric(a: Params, b: Params, *, alpha: float = ALPHA, trivial: Params | None = None) -> float:
    """`task2vec_asymmetric` of the embeddings of a source and a target."""
    require(alpha >= 0, f"alpha must be >= 0, got {alpha}")
    even = {name: value.mean().expand_as(value) for name, value in a.items()}
    return embedding_distance(a, b) - alpha * embedding_distance(a, even if trivial is None else trivial)


def embedding_distance(a: Params, b: Params) -> float:
    """`task2vec_distance` of two embeddings."""
    odd = sorted({(name, len(value)) for name, value in a.items()} ^ {(name, len(value)) for name, value in b.items()})
    if odd:
        raise MismatchError(
            f"the two Fisher diagonals differ in the filters of {odd[0][0]}; measure both with one network, and leave "
            f"out its last layer with head="
        )
    x, y = torch.cat(list(a.values())), torch.cat([b[name] for name in a])
    total = (x + y).clamp_min(torch.finfo(torch.float64).tiny)
    x, y = x / total, y / total
    return min(1.0, max(0.0, 1 - float(x @ y / (x.norm() * y.norm()))))
