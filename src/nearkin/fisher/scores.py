r"""Per-sample gradients of the loss.

A cotangent `c` `[B, *outputs]` represents the sample's loss: the gradient of sample b is $J_b^\top c_b$.
"""

from collections.abc import Collection, Iterator
from typing import Unpack

from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import MEMORY_BYTES, autodiff_gradients, chunk_size
from nearkin.fisher.cotangents import LABELS, Data, SampleOptions, Samples, sample_blocks
from nearkin.fisher.gradient_plan import local_tensors, require_evaluation_mode, wanted_names
from nearkin.fisher.layers import rule_for
from nearkin.fisher.planned_tape import PlannedTape
from nearkin.fisher.tape import detached_weights, pull_back


def sample_gradients(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    names: Collection[str] | None = None,
    memory: int = MEMORY_BYTES,
    **options: Unpack[SampleOptions],
) -> Iterator[Params]:
    r"""Per-sample gradients of the loss, $-\nabla_\theta \log p(y_b \mid f(x_b))$, one block of samples at a time.

    The gradients of all data are never in memory at once.

    Args:
        model: the network, in evaluation mode.
        data: inputs with `targets`, examples, or an iterable of batches, as for `diagonal`.
        targets: labels for `observed`.
        names: parameters (default: all that require gradients).
        memory: approximate bytes for the gradients of a block.
        options: `likelihood`, `labels` (`observed` or `sampled`), `batch_size` and `seed`, as for `diagonal`.

    Yields:
        `[B, *shape]` by name.

    >>> import torch
    >>> net, x = nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> (block,) = sample_gradients(net, x, net(x).detach() - 1, likelihood="gaussian")
    >>> block["weight"].round().tolist()
    [[[1.0, 2.0]], [[3.0, 0.0]]]
    """
    samples = Samples(data, targets, **options)
    require(
        samples.labels in LABELS[:2] and samples.num_samples == 1,
        f"per-sample gradients need observed labels or labels sampled once, got labels={samples.labels!r} and "
        f"num_samples={samples.num_samples}; change them",
    )
    require_evaluation_mode(model)
    weights, selected = detached_weights(model), wanted_names(model, names)
    gradients: Params = {}
    tape: PlannedTape | None = None

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        rule = rule_for(layer)
        if rule is not None and tape is not None:
            for local, gradient in rule.gradients(layer, local_tensors(layer), read, g).items():
                owner = tape.plan.owners[name][local]
                gradients[owner] = gradients[owner] + gradient if owner in gradients else gradient

    for x, cotangents_at in samples.batches():
        tape = tape or PlannedTape(model, weights, x, selected, receive)
        for block in sample_blocks(len(x), chunk_size(weights, selected, memory)):
            gradients.clear()
            outputs, size = tape(x[block]), len(x[block])
            cotangent = next(cotangents_at(outputs.detach(), block))
            pull_back(outputs, cotangent)
            rest, alone = tape.plan.rest, tape.plan.alone
            rows = autodiff_gradients(model, weights, rest, x[block], cotangent, alone) if rest else {}
            unused = {name: weights[name].new_zeros(size, *weights[name].shape) for name in selected}
            yield {name: {**unused, **gradients, **rows}[name] for name in selected}
