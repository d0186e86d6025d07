"""The dear measure: fine-tune for real, and see how fast the loss falls."""

import torch

from nearkin.core.rng import Streams
from nearkin.distance.sight import Sight
from nearkin.nets.heads import with_head

STEPS = 60
BATCH = 32
RATE = 0.01
MOMENTUM = 0.9
HEAD_SEED = 0


def finetuned_loss(sight: Sight, steps: int = STEPS, seed: int = 0) -> float:
    """Mean training loss over the first steps of fine-tuning all weights with a fresh head: smaller is nearer.

    SGD with momentum, no schedule; every source sees the same batches and starts from the same head where widths agree.
    Batch normalisation keeps the source's statistics, as the few samples of a target give none to rely on.

    >>> from nearkin.nets.registry import build
    >>> from nearkin.tasks.sources import task
    >>> target = task("digits?detect=0&limit=200")
    >>> sight = Sight(build("mlp", target.input_shape, 5, seed=0).eval(), target, target.form)
    >>> finetuned_loss(sight, steps=30) < finetuned_loss(sight, steps=3)
    True
    """
    model = with_head(sight.model, sight.task.num_outputs, HEAD_SEED, sight.head).eval()
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    x, y = sight.train
    rng, total = Streams(seed)["finetune"], 0.0
    for _ in range(steps):
        index = torch.randint(len(x), (min(BATCH, len(x)),), generator=rng)
        loss = sight.task.form.loss(model(x[index]), y[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / steps
