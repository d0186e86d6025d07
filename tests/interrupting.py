"""Long work that is stopped: a listener that raises at a checkpoint, and small work that counts."""

import torch

from nearkin.core.events import Checkpoint, Event, Listener, Progress, Work
from nearkin.core.state import State


class Stop(Exception):
    """What a listener raises."""


def stopping_at(number: int) -> Listener:
    """A listener that raises `Stop` at the checkpoint of that number, counted from 1."""
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Checkpoint)
        if seen == number:
            raise Stop

    return listen


def counting(limit: int, start: int = 0) -> Work[int]:
    """Adds up 1 … limit, with a checkpoint after each."""
    total = sum(range(start + 1))
    for number in range(start + 1, limit + 1):
        total += number
        yield Progress("count", number, limit)
        now = number
        yield Checkpoint(lambda now=now: State({"now": torch.tensor([now])}))  # type: ignore[misc]
    return total
