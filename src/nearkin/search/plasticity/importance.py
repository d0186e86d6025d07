r"""Importance of shared weights for a model: its Fisher information on validation data.

The weights of model A that are shared are $\theta_s$, its private ones $\theta_1$. The diagonal of the Fisher matrix
$F_{ss}$ says how much A's predictions change if one shared weight moves. With the whole matrix there are two answers:
$F_{ss}$ if $\theta_1$ stays as it is, and the Schur complement $\Omega = F_{ss} - F_{s1} F_{11}^{-1} F_{1s}$ if
$\theta_1$ is free. The latter is the precision of A's marginal posterior of $\theta_s$ (Benyahia et al. 2019, Lemma 2).
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Event, Work, finish, operation
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.types import Params
from nearkin.fisher.cotangents import Data
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.full import fisher_matrix
from nearkin.fisher.gradient_plan import wanted_names
from nearkin.fisher.kronecker import Factors, kronecker
from nearkin.search.plasticity.penalty_blocks import DenseBlock, DiagonalBlock, PenaltyBlock
from nearkin.search.plasticity.plasticity_options import PlasticityOptions
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.likelihood import likelihood

HALF = (torch.float16, torch.bfloat16)


@operation
def measure_importance(
    model: nn.Module,
    names: Mapping[str, str],
    data: Data,
    targets: Tensor | None = None,
    options: PlasticityOptions = PlasticityOptions(),  # noqa: B008
) -> Work[tuple[PenaltyBlock, ...]]:
    """Importance of some parameters of a model, as blocks of a quadratic penalty.

    The model is measured in evaluation mode and is not changed; weights of half precision are measured in float32.
    `batch-square` uses the present mode of the model instead, because it needs no gradients of single samples.

    Args:
        model: the trained model.
        names: shared name of each parameter, by its name in the model.
        data: inputs `[N, *input_shape]` with `targets`, examples of a task, or any iterable of `(x, y)` batches.
        targets: labels `[N]` or `[N, K]`.
        options: kind of importance, structure, number of samples.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> options = PlasticityOptions(importance="expected", likelihood="gaussian", normalise=False)
    >>> (block,) = measure_importance(net, {"weight": "shared"}, x, options=options)
    >>> block.diagonal()
    {'shared': tensor([[5., 2.]])}
    """
    data, targets = drawn_samples(data, targets, options)
    if any(value.dtype in HALF for value in model.parameters()):
        model = copy.deepcopy(model).float()
        if isinstance(data, Tensor) and data.is_floating_point():
            data = data.float()
    events: list[Event] = []
    if options.importance == "uniform":
        known = dict(model.named_parameters())
        values = {name: torch.ones_like(known[name]) for name in names}
    elif options.importance == "batch-square":
        values = batch_squares(model, tuple(names), batches(data, targets, options.batch_size), options)
    else:
        with evaluating(model):
            blocks = _fisher_blocks(model, names, data, targets, options, events)
        yield from events
        return normalised(blocks) if options.normalise else blocks
    diagonals = tuple(DiagonalBlock(names[name], value) for name, value in values.items())
    return normalised(diagonals) if options.normalise else diagonals


def _fisher_blocks(
    model: nn.Module,
    names: Mapping[str, str],
    data: Data,
    targets: Tensor | None,
    options: PlasticityOptions,
    events: list[Event],
) -> tuple[PenaltyBlock, ...]:
    how = {
        "likelihood": options.likelihood, "labels": options.importance, "batch_size": options.batch_size,
        "seed": options.seed,
    }  # fmt: skip
    if options.structure == "diagonal":
        fisher = finish(diagonal.work(model, data, targets, names=tuple(names), **how), events.append)  # type: ignore[arg-type]
        return tuple(DiagonalBlock(names[name], value) for name, value in fisher.values.items())
    if options.structure == "kronecker":
        factors = kronecker(model, data, targets, names=tuple(names), **how)  # type: ignore[arg-type]
        return tuple(_renamed(block, names) for block in factors.blocks)
    shapes = {name: value.shape for name, value in model.named_parameters()}
    if options.structure == "full":
        selected = wanted_names(model, tuple(names))
        matrix = fisher_matrix(model, data, targets, names=selected, **how)  # type: ignore[arg-type]
        matrix = matrix + options.damping * torch.eye(len(matrix)).to(matrix)
    else:
        everything = wanted_names(model, {*names, *(n for n, p in model.named_parameters() if p.requires_grad)})
        selected = tuple(name for name in everything if name in names)
        matrix = fisher_matrix(model, data, targets, names=everything, **how)  # type: ignore[arg-type]
        shared = torch.cat([torch.full((shapes[name].numel(),), name in names) for name in everything])
        matrix = schur_complement(matrix + options.damping * torch.eye(len(matrix)).to(matrix), shared)
    return (DenseBlock.of([names[name] for name in selected], [shapes[name] for name in selected], matrix),)


def schur_complement(matrix: Tensor, kept: Tensor) -> Tensor:
    r"""$M_{ss} - M_{s1} M_{11}^{+} M_{1s}$ of a symmetric matrix `[P, P]`, where `kept` `[P]` is true for s.

    >>> schur_complement(torch.tensor([[2.0, 1.0], [1.0, 4.0]]), torch.tensor([True, False]))
    tensor([[1.7500]])
    """
    kept = kept.to(matrix.device)
    inverse = torch.linalg.pinv(matrix[~kept][:, ~kept], hermitian=True)
    across = matrix[kept][:, ~kept]
    correction: Tensor = across @ inverse @ across.T
    return matrix[kept][:, kept] - correction


def _renamed(block: object, names: Mapping[str, str]) -> PenaltyBlock:
    if not isinstance(block, Factors):
        (name, values), = block.diagonal().items()  # type: ignore[attr-defined]  # fmt: skip
        return DiagonalBlock(names[name], values)
    renamed, shapes = [names[block.weight]], [block.shape]
    if block.bias is not None:
        renamed.append(names[block.bias])
        shapes.append(torch.Size([len(block.outputs)]))
    return DenseBlock.of(renamed, shapes, block.inputs, block.outputs)


def batch_squares(
    model: nn.Module, names: tuple[str, ...], data: Iterable[tuple[Tensor, Tensor]], options: PlasticityOptions
) -> Params:
    r"""Mean over batches of $(\partial_i L)^2$, the squared gradient of the batch's mean loss, by name.

    It is not an estimate of the Fisher information: per-sample gradients cancel in the mean. Buffers of the model keep
    their values.
    """
    form, count = likelihood(options.likelihood), 0
    weights = {name: value.detach() for name, value in model.named_parameters()}
    sums = {name: torch.zeros_like(weights[name]) for name in names}
    with torch.enable_grad(), seeded(options.seed):
        for x, y in data:
            chosen = {name: weights[name].clone().requires_grad_() for name in names}
            buffers = {name: value.clone() for name, value in model.named_buffers()}
            loss = form.loss(functional_call(model, {**weights, **buffers, **chosen}, (x,)), y)
            gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
            for name, gradient in zip(names, gradients, strict=True):
                if gradient is not None:
                    sums[name].addcmul_(gradient, gradient)
            count += 1
    require(count > 0, "there is no sample to measure on; the data is empty", DataError)
    return {name: value / count for name, value in sums.items()}


def normalised(blocks: tuple[PenaltyBlock, ...]) -> tuple[PenaltyBlock, ...]:
    """Blocks divided by the mean of their diagonals, over the parameters that the model uses.

    >>> unused = DiagonalBlock("b", torch.zeros(3))
    >>> [block.values.tolist() for block in normalised((DiagonalBlock("a", torch.tensor([1.0, 3.0])), unused))]
    [[0.5, 1.5], [0.0, 0.0, 0.0]]
    """
    diagonals = [value.double() for block in blocks for value in block.diagonal().values()]
    used = [value for value in diagonals if bool((value != 0).any())]
    require(
        bool(used),
        "the importance of all shared weights is zero: the model's outputs do not depend on them, or its loss is "
        "constant; check that the model uses the shared parameters",
        MismatchError,
    )
    mean = float(torch.stack([value.sum() for value in used]).sum()) / sum(value.numel() for value in used)
    return tuple(block.scaled(1 / mean) for block in blocks)


def drawn_samples(data: Data, targets: Tensor | None, options: PlasticityOptions) -> tuple[Data, Tensor | None]:
    """At most `options.samples` of the validation set, drawn without replacement; loaders are used as they are."""
    if isinstance(data, Examples):
        data, targets = data.all()
    if not isinstance(data, Tensor):
        return data, targets
    count = len(data)
    require(
        count >= 2,
        f"the validation set has {count} sample{'s' * (count != 1)}, expected 2 or more; give about 200",
        DataError,
    )
    require(
        targets is None or len(targets) == count,
        f"{count} validation inputs but {0 if targets is None else len(targets)} labels; give one label per input",
        DataError,
    )
    if options.samples is None or options.samples >= count:
        return data, targets
    rng = Streams(derived_seed(options.seed, "plasticity"))["samples"]
    rows = torch.randperm(count, generator=rng)[: options.samples].to(data.device)
    return data[rows], None if targets is None else targets[rows.to(targets.device)]


def batches(data: Data, targets: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of inputs and labels."""
    if isinstance(data, Examples):
        yield from ordered_batches(data, size)
    elif isinstance(data, Tensor):
        if targets is None:
            raise DataError("batch-square needs the labels of the validation set, got none; give y")
        yield from zip(data.split(size), targets.split(size), strict=True)
    else:
        yield from data


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode in a block; afterwards every module has its former mode.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
