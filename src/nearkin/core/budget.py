"""Limits of a search: time, steps, evaluations."""

import time
from dataclasses import dataclass

from nearkin.core.clock import Clock, larger_share
from nearkin.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a search, which ends when the first of them is reached. A limit that is None never ends it.

    Attributes:
        minutes: working time, summed over interruptions.
        cpu_minutes: processor time of this process. With `minutes` too, the limit of which the larger share is used
            counts.
        steps: steps of the searcher.
        evaluations: genotypes that were scored.

    >>> Budget(steps=3).spent(seconds=1e9, steps=2, evaluations=7), Budget(steps=3).spent(0, 3, 0)
    ('', '3 steps')
    >>> Budget(minutes=2).seconds, Budget(cpu_minutes=1).seconds, Budget(steps=3).seconds
    (120.0, 60.0, None)
    """

    minutes: float | None = None
    cpu_minutes: float | None = None
    steps: int | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(
                value is None or value > 0,
                f"the budget of {name} is {value}, expected a number above 0; leave it out for no limit",
            )

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds of `clock`; None without one."""
        minutes = self.cpu_minutes if self.minutes is None else self.minutes
        return None if minutes is None else 60.0 * minutes

    def clock(self) -> Clock:
        """The clock that measures the time limit."""
        if self.cpu_minutes is None:
            return time.perf_counter
        return time.process_time if self.minutes is None else larger_share(60 * self.minutes, 60 * self.cpu_minutes)

    def used(self, wall: float, processor: float) -> float:
        """Seconds of the time limit after so much wall time and processor time, see `clock`.

        >>> Budget(minutes=2).used(3.0, 1.0), Budget(minutes=2, cpu_minutes=1).used(3.0, 2.0)
        (3.0, 4.0)
        """
        if self.cpu_minutes is None:
            return wall
        return processor if self.minutes is None else max(wall, processor * self.minutes / self.cpu_minutes)

    def spent(self, seconds: float, steps: int, evaluations: int) -> str:
        """The first limit that is reached, as text such as `3 steps`; empty if none is."""
        limits = self._limits(seconds, steps, evaluations)
        return next((f"{limit:g} {name}" for name, used, limit in limits if used >= limit), "")

    def share(self, seconds: float, steps: int, evaluations: int) -> float | None:
        """The used share of the limit that is nearest, from 0 to 1; None without limits."""
        shares = [used / limit for _, used, limit in self._limits(seconds, steps, evaluations)]
        return min(1.0, max(shares)) if shares else None

    def _limits(self, seconds: float, steps: int, evaluations: int) -> list[tuple[str, float, float]]:
        """Name, used amount and limit of everything that is limited."""
        minutes = None if self.seconds is None else self.seconds / 60
        amounts = (
            ("minutes", seconds / 60, minutes),
            ("steps", steps, self.steps),
            ("evaluations", evaluations, self.evaluations),
        )
        return [(name, used, limit) for name, used, limit in amounts if limit is not None]
