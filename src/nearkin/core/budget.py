"""How long a search may take."""

from dataclasses import dataclass

from nearkin.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What ends a search: the first of these that is reached; nothing where none is given.

    Attributes:
        minutes: of working time, added up over interruptions.
        steps: of the searcher.
        evaluations: genotypes whose worth was measured.

    >>> Budget(steps=3).spent(seconds=1e9, steps=2, evaluations=7), Budget(steps=3).spent(0, 3, 0)
    ('', '3 steps')
    """

    minutes: float | None = None
    steps: int | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for name in ("minutes", "steps", "evaluations"):
            value = getattr(self, name)
            require(value is None or value > 0, f"a budget of {name} is above 0, got {value}; leave it out for no end")

    def spent(self, seconds: float, steps: int, evaluations: int) -> str:
        """Which part of the budget is used up, in words; empty while none is."""
        used = {"minutes": seconds / 60, "steps": steps, "evaluations": evaluations}
        return next(
            (f"{limit:g} {name}" for name in used if (limit := getattr(self, name)) and used[name] >= limit), ""
        )

    def share(self, seconds: float, steps: int, evaluations: int) -> float | None:
        """The largest share of any part that is used up, from 0 to 1; None without an end."""
        used = {"minutes": seconds / 60, "steps": steps, "evaluations": evaluations}
        shares = [used[name] / limit for name in used if (limit := getattr(self, name))]
        return min(1.0, max(shares)) if shares else None
