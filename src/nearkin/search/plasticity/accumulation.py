r"""Importance over a sequence of models: what is kept of the earlier ones when one more is added.

`path`: $F \leftarrow (1 - d) F + F_{new}$ for the weights that the new model uses, and no change for the others.
`average`: $F \leftarrow (1 - d) F + d F_{new}$ for all weights (as printed, with d = 0.9).
`sum`: $F \leftarrow F + F_{new}$.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.types import Params
from nearkin.search.plasticity.penalty_blocks import DenseBlock, DiagonalBlock, PenaltyBlock
from nearkin.search.plasticity.plasticity_options import PlasticityOptions

Blocks = tuple[PenaltyBlock, ...]


def accumulate(blocks: Blocks, new: Blocks, shared: Mapping[str, Tensor], options: PlasticityOptions) -> Blocks:
    """The importance of all models so far; `blocks` is empty before the first one.

    >>> shared = {"a": torch.zeros(1), "b": torch.zeros(1)}
    >>> first = accumulate((), (DiagonalBlock("a", torch.ones(1)),), shared, PlasticityOptions())
    >>> second = accumulate(first, (DiagonalBlock("a", torch.ones(1)),), shared, PlasticityOptions())
    >>> [(block.names[0], round(float(block.values), 6)) for block in second]
    [('a', 1.9), ('b', 0.0)]
    """
    gain = options.rate if options.update == "average" else 1.0
    if not blocks:
        return tuple(block.scaled(gain) for block in _completed(new, shared, options))
    added = {block.names: block for block in (_completed(new, shared, options) if _dense(options) else new)}
    require(
        set(added) <= {block.names for block in blocks},
        "the layers of this model have other Kronecker factors than those of the model before; call flush() before "
        "it, or use structure='diagonal'",
        OptionError,
    )
    used, rest = used_weights(new), 1 - options.rate if options.update == "average" else 1.0
    total = []
    for block in blocks:
        if block.names in added:
            keep = {name: _kept(value, used.get(name), options) for name, value in block.diagonal().items()}
            total.append(block.added(added[block.names], keep, gain))
        else:
            total.append(block if rest == 1 else block.scaled(rest))
    return tuple(total)


def used_weights(blocks: Blocks) -> Params:
    """Masks of the weights with any importance, by name: those on the path of a model."""
    masks = {}
    for block in blocks:
        tolerance = 0.0
        if isinstance(block, DenseBlock):  # its diagonal is a product of eigenvectors, with rounding errors
            tolerance = 10 * torch.finfo(block.right.dtype).eps * block.largest()
        masks.update({name: value > tolerance for name, value in block.diagonal().items()})
    return masks


def moved_anchors(anchors: Params, shared: Mapping[str, Tensor], new: Blocks, options: PlasticityOptions) -> Params:
    """Anchors after one more model: the present values of the weights that it uses; of all weights unless `path`."""
    present = {name: value.detach() for name, value in shared.items()}
    if not anchors or options.update != "path":
        return {name: value.clone() for name, value in present.items()}
    used = used_weights(new)
    return {
        name: torch.where(used[name], present[name], anchor.to(present[name])) if name in used else anchor
        for name, anchor in anchors.items()
    }


def checked_importance(
    importance: Mapping[str, Tensor], shared: Mapping[str, Tensor], options: PlasticityOptions
) -> Blocks:
    """Blocks of an importance that was measured elsewhere."""
    require(
        options.structure == "diagonal",
        f"importance by name is a diagonal, but structure is {options.structure!r}; use anchor()",
    )
    for name, value in importance.items():
        require(name in shared, f"there is no shared parameter {name}; see plasticity.shared", MismatchError)
        expected = tuple(shared[name].shape)
        require(
            tuple(value.shape) == expected and bool((value >= 0).all()),
            f"the importance of {name} has shape {tuple(value.shape)}, expected {expected} and values >= 0",
            MismatchError,
        )
    return tuple(DiagonalBlock(name, value.detach().clone()) for name, value in importance.items())


def _kept(old: Tensor, used: Tensor | None, options: PlasticityOptions) -> Tensor:
    """Factor of the old importance, weight by weight."""
    if options.update == "path" and used is not None:
        return torch.where(used, torch.full_like(old, 1 - options.rate), 1.0)
    return torch.full_like(old, 1 - options.rate if options.update == "average" else 1.0)


def _completed(blocks: Blocks, shared: Mapping[str, Tensor], options: PlasticityOptions) -> Blocks:
    """Blocks of a model with those of the shared parameters that it lacks, which have no importance for it."""
    if _dense(options):
        (block,) = blocks
        assert isinstance(block, DenseBlock)
        return (_embedded(block, shared),)
    known = {name for block in blocks for name in block.names}
    rest = [(name, value) for name, value in shared.items() if name not in known]
    dtypes = {name: torch.promote_types(value.dtype, torch.float32) for name, value in rest}
    return (*blocks, *(DiagonalBlock(name, torch.zeros_like(value, dtype=dtypes[name])) for name, value in rest))


def _dense(options: PlasticityOptions) -> bool:
    """Whether the importance of all shared weights is one block."""
    return options.structure in ("full", "marginal")


def _embedded(block: DenseBlock, shared: Mapping[str, Tensor]) -> DenseBlock:
    """A dense block of some shared parameters as one of all of them, with zeros."""
    if block.names == tuple(shared):
        return block
    rows, start = {}, 0
    for name, value in shared.items():
        rows[name] = torch.arange(start, start + value.numel(), device=block.right.device)
        start += value.numel()
    index = torch.cat([rows[name] for name in block.names])
    matrix = block.right.new_zeros(start, start)
    matrix[index[:, None], index] = block.matrix()
    return DenseBlock.of(tuple(shared), tuple(value.shape for value in shared.values()), matrix)
