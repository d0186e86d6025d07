r"""Per-sample gradients where they are asked for, and for weights that no formula covers.

A cotangent `c` `[B, *outputs]` stands for the sample's loss: the gradient of sample b is $J_b^\top c_b$.
"""

from collections.abc import Collection, Iterator

from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import MEMORY_BYTES, autodiff_gradients, chunk_size
from nearkin.fisher.cotangents import LABELS, Data, Samples, sample_blocks
from nearkin.fisher.gradient_plan import local_tensors, require_evaluation_mode, wanted_names
from nearkin.fisher.layers import rule_for
from nearkin.fisher.planned_tape import PlannedTape
from nearkin.fisher.tape import detached_weights, pull_back


def sample_gradients(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    labels: str = "observed",
    batch_size: int = 128,
    seed: int = 0,
    names: Collection[str] | None = None,
    memory: int = MEMORY_BYTES,
) -> Iterator[Params]:
    r"""Per-sample gradients of the loss, $-\nabla_\theta \log p(y_b \mid f(x_b))$, a block of samples at a time.

    The gradients of all data never stand in memory at once.

    Args:
        model: the network, in evaluation mode.
        data: inputs with `targets`, examples, or an iterable of batches, as for `diagonal`.
        targets: labels for `observed`.
        likelihood: the name of one.
        labels: `observed`, or `sampled` once from the model.
        batch_size: samples of a block at the most.
        seed: of the draws.
        names: parameters; by default all that require gradients.
        memory: bytes that a block's gradients may take, about.

    Yields:
        `[B, *shape]` by name.

    >>> import torch
    >>> net, x = nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> (block,) = sample_gradients(net, x, net(x).detach() - 1, likelihood="gaussian")
    >>> block["weight"].round().tolist()
    [[[1.0, 2.0]], [[3.0, 0.0]]]
    """
    require(labels in LABELS[:2], f"per-sample gradients have observed or sampled labels, got {labels!r}")
    samples = Samples(data, targets, likelihood, labels, batch_size, 1, seed)
    require_evaluation_mode(model)
    weights, chosen = detached_weights(model), wanted_names(model, names)
    found: Params = {}
    tape: PlannedTape | None = None

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        rule = rule_for(layer)
        if rule is not None and tape is not None:
            for local, gradient in rule.gradients(layer, local_tensors(layer), read, g).items():
                owner = tape.plan.owners[name][local]
                found[owner] = found[owner] + gradient if owner in found else gradient

    for x, cotangents_at in samples.batches():
        tape = tape or PlannedTape(model, weights, x, chosen, receive)
        for part in sample_blocks(len(x), chunk_size(weights, chosen, memory)):
            found.clear()
            outputs, size = tape(x[part]), len(x[part])
            cotangent = next(cotangents_at(outputs.detach(), part))
            pull_back(outputs, cotangent)
            rest, alone = tape.plan.rest, tape.plan.alone
            rows = autodiff_gradients(model, weights, rest, x[part], cotangent, alone) if rest else {}
            unused = {name: weights[name].new_zeros(size, *weights[name].shape) for name in chosen}
            yield {name: {**unused, **found, **rows}[name] for name in chosen}
