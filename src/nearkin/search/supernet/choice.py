"""Choice of a genotype from architecture weights: the strongest operation of each row, the best edges of each node.

A layout (`ChoiceLayout`) says which rows a genotype uses: edges of cells, or layers of a chain.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS
from nearkin.search.genotypes.genotype import SKIP, Cells, Genotype
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import Limit, limits_of, without_limits
from nearkin.search.spaces.restricted import ANY, RestrictedSpace
from nearkin.search.supernet.choice_layout import Architecture, ChoiceLayout, ChoiceWeights, Row

_DRAWS = 100


def edge_weights(layout: ChoiceLayout, architecture: Architecture) -> dict[str, Tensor]:
    """Weights by which rows and operations are chosen."""
    values = layout.weights({name: value.detach().double().cpu() for name, value in architecture.items()})
    return {kind: alpha * beta[:, None] for kind, (alpha, beta) in values.items()}


def choose_genotype(
    space: Space, layout: ChoiceLayout, weights: ChoiceWeights, max_skips: int | None = None
) -> Genotype:
    """The strongest genotype of a space with a largest number of skip connections.

    The number is that of the normal cell, or of each stage of a chain. If the strongest genotype is outside a limit of
    the space, operations are replaced one by one, first those that lose the least weight for the cost that they save.
    Then operations are replaced by stronger ones as long as the limits allow. The limits of the space come first: if
    they cannot be kept otherwise, there are more skip connections.
    """
    weights = limit_skips(layout, weights, max_skips)
    start, whole = _strongest_member(space, layout, weights), without_limits(space)
    if space.contains(start):
        return start
    if not whole.contains(start):
        drawn = [whole.sample(Streams(0).at("draw", number)) for number in range(_DRAWS)]
        start = max(drawn, key=lambda genotype: log_weight(layout, weights, genotype))
    for most in dict.fromkeys((max_skips, None)):
        genotype = _descend(limits_of(space), whole, layout, weights, start, most)
        if space.contains(genotype):
            return _climb(space, whole, layout, weights, genotype, most)
    return space.sample(Streams(0).at("draw", 0))


def _descend(
    limits: Sequence[Limit], whole: Space, layout: ChoiceLayout, weights: ChoiceWeights, genotype: Genotype,
    max_skips: int | None,
) -> Genotype:  # fmt: skip
    """Go to the neighbour that loses the least log weight for the cost above the limits that it saves, until none does.

    Args:
        limits: the limits.
        whole: the space without them.
        layout: tables of weights.
        weights: their values.
        genotype: a member of the whole space.
        max_skips: largest number of skip connections in a group.
    """
    above, value = _excess(limits, genotype), log_weight(layout, weights, genotype)
    while above > 0:
        cheaper = [(log, other, _excess(limits, other))
                   for log, other in _neighbours(whole, layout, weights, genotype, max_skips)]  # fmt: skip
        cheaper = [entry for entry in cheaper if entry[2] < above]
        if not cheaper:
            break
        value, genotype, above = min(
            cheaper,
            key=lambda entry: ((value - entry[0]) / (above - entry[2]), str(entry[1])),
        )
    return genotype


def _climb(
    space: Space, whole: Space, layout: ChoiceLayout, weights: ChoiceWeights, genotype: Genotype, max_skips: int | None
) -> Genotype:
    """Go to the strongest neighbour within the limits of the space as long as it is stronger."""
    while True:
        value = log_weight(layout, weights, genotype)
        ranked = sorted(
            _neighbours(whole, layout, weights, genotype, max_skips), key=lambda pair: (-pair[0], str(pair[1]))
        )
        better = next((other for log, other in ranked if log > value and space.contains(other)), None)
        if better is None:
            return genotype
        genotype = better


def _neighbours(
    whole: Space, layout: ChoiceLayout, weights: ChoiceWeights, genotype: Genotype, max_skips: int | None
) -> list[tuple[float, Genotype]]:
    """Neighbours that are paths of the supernet, with their log weights; none adds to too many skip connections."""
    allowed = _skips_above(layout, genotype, max_skips)
    pairs = ((log_weight(layout, weights, other), other) for other in whole.neighbours(genotype))
    return [(log, other) for log, other in pairs
            if log > -math.inf and _skips_above(layout, other, max_skips) <= allowed]  # fmt: skip


def _skips_above(layout: ChoiceLayout, genotype: Genotype, max_skips: int | None) -> int:
    """Number of skip connections above the largest number of each group."""
    return 0 if max_skips is None else sum(max(0, len(group) - max_skips) for group in layout.skip_groups(genotype))


def _excess(limits: Sequence[Limit], genotype: Genotype) -> float:
    """Sum of the costs above the limits, relative to the limits."""
    return sum(max(0.0, limit.cost(genotype) - limit.at_most) / (abs(limit.at_most) or 1) for limit in limits)


def log_weight(layout: ChoiceLayout, weights: ChoiceWeights, genotype: Genotype) -> float:
    """Sum of the logarithms of the weights of a genotype; minus infinity if it is not a path of the supernet."""
    rows, total = layout.rows(genotype), 0.0
    if rows is None:
        return -math.inf
    for key, names in genotype.operations().items():
        for row, name in zip(rows[key], names, strict=True):
            if name not in layout.columns[row.kind]:
                return -math.inf
            total += math.log(max(1e-300, _weight(layout, weights, row, name)))
    return total


def mean_share(layout: ChoiceLayout, weights: ChoiceWeights, genotype: Genotype) -> float:
    """Mean fraction of a row's weight that its chosen operation has, without zeros; from 0 to 1."""
    rows, shares = layout.rows(genotype), []
    assert rows is not None
    for key, names in genotype.operations().items():
        for row, name in zip(rows[key], names, strict=True):
            table = weights[row.kind][row.number]
            live = [column for column, other in enumerate(layout.columns[row.kind]) if other not in ZEROS]
            whole = table if name in ZEROS else table[live]
            shares.append(_weight(layout, weights, row, name) / float(whole.sum()))
    return sum(shares) / len(shares)


def strongest_genotype(layout: ChoiceLayout, weights: ChoiceWeights) -> Genotype:
    """The genotype of the largest weights.

    >>> import torch
    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> from nearkin.search.supernet.supernet_layout import SupernetLayout
    >>> layout = SupernetLayout.of(GeneralSpace((2,), ("zero", "conv3")))
    >>> print(strongest_genotype(layout, {"normal": torch.tensor([[0.4, 0.6]])}))
    normal(0): 1 = conv3(0); out = 1
    """
    return layout.strongest(weights)


def num_skips(genotype: Genotype) -> int:
    """Number of skip connections in the normal cell, or of skipped blocks of a chain."""
    if isinstance(genotype, Cells):
        return sum(edge.operation in IDENTITIES for edge in genotype.normal.edges)
    return sum(name == SKIP for names in genotype.operations().values() for name in names)


def limit_skips(layout: ChoiceLayout, weights: ChoiceWeights, max_skips: int | None) -> dict[str, Tensor]:
    """Set the weights of the weakest chosen skip connections to zero until the number of skip connections is allowed.

    As in P-DARTS, such a row then uses its next operation. The limit holds for the normal cell and for each stage of a
    chain.
    """
    kept = {kind: table.clone() for kind, table in weights.items()}
    while max_skips is not None:
        excess = [group for group in layout.skip_groups(layout.strongest(kept)) if len(group) > max_skips]
        weakest = [min(group, key=lambda skip: _weight(layout, kept, *skip)) for group in excess]
        weakest = [skip for skip in weakest if _weight(layout, kept, *skip) > 0]  # else there is no other operation
        if not weakest:
            break
        for row, name in weakest:
            kept[row.kind][row.number, layout.columns[row.kind].index(name)] = 0.0
    return kept


def _weight(layout: ChoiceLayout, weights: ChoiceWeights, row: Row, name: str) -> float:
    """Weight of an operation of a row."""
    return float(weights[row.kind][row.number, layout.columns[row.kind].index(name)])


def _strongest_member(space: Space, layout: ChoiceLayout, weights: ChoiceWeights) -> Genotype:
    """The strongest genotype of a space without its limits."""
    space = without_limits(space)
    if not isinstance(space, RestrictedSpace):
        return layout.strongest(weights)
    allowed, members = dict(space.operations), []
    for form in space.structures:
        if (rows := layout.rows(form)) is None:
            continue
        names = {key: [_operation(layout, weights, row, name, allowed[key])
                       for row, name in zip(rows[key], names, strict=True)]
                 for key, names in form.operations().items()}  # fmt: skip
        members.append(form.with_operations(names))
    return max(members, key=lambda genotype: log_weight(layout, weights, genotype))


def _operation(layout: ChoiceLayout, weights: ChoiceWeights, row: Row, name: str, allowed: tuple[str, ...]) -> str:
    """Operation of a row of a structure: the fixed one, or the strongest of the allowed ones."""
    return name if name != ANY else max(allowed, key=lambda other: _weight(layout, weights, row, other))
