"""Limits of a search: time, steps, evaluations."""

from dataclasses import dataclass

from nearkin.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a search, which ends when the first of them is reached. A limit that is None never ends it.

    Attributes:
        minutes: working time, summed over interruptions.
        steps: steps of the searcher.
        evaluations: genotypes that were scored.

    >>> Budget(steps=3).spent(seconds=1e9, steps=2, evaluations=7), Budget(steps=3).spent(0, 3, 0)
    ('', '3 steps')
    """

    minutes: float | None = None
    steps: int | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(
                value is None or value > 0,
                f"the budget of {name} is {value}, expected a number above 0; leave it out for no limit",
            )

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
        used = {"minutes": seconds / 60, "steps": steps, "evaluations": evaluations}
        return [(name, used[name], limit) for name in used if (limit := getattr(self, name))]
