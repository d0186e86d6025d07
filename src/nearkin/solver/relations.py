"""Relations: related tasks by several measures, their agreement, and whose cells and weights are used."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NotRequired, TypedDict

from nearkin.core.lazy import Lazy
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import current_name

stats = Lazy("scipy.stats")


class RankingRow(TypedDict):
    """The used fields of a row of `Ranking.rows`."""

    name: str
    distance: float
    std: float
    trials: list[float]
    form: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Relations:
    """Related tasks of the target.

    Attributes:
        rankings: by measure, the rows of `Ranking.rows`, nearest first.
        agreement: rank correlation of each pair of measures over the tasks that both compare, by `first, second`.
        refused: why some tasks could not be compared, by name.
        cells_of: task whose cells the search starts from; None for the full space.
        distance: Fréchet distance of that task, or of the nearest task with cells; None without one.
        near: whether the distance is within the threshold.
        why: reason for the choice of the search space.
        threshold: `Threshold.to_dict`; None without a task that has cells.
        tuned: task whose network is fine-tuned; None without related tasks.
        seconds: time of the comparison.
        form: form of the Fréchet distance, see `distance.forms`; empty without a distance.
    """

    rankings: Mapping[str, Sequence[RankingRow]] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    cells_of: str | None = None
    distance: float | None = None
    near: bool = False
    why: str = ""
    threshold: Mapping[str, Any] | None = None
    tuned: str | None = None
    seconds: float = 0.0
    form: str = ""

    def __post_init__(self) -> None:
        rankings = {current_name(measure): rows for measure, rows in self.rankings.items()}  # stored under old names
        object.__setattr__(self, "rankings", rankings)
        pairs = {", ".join(map(current_name, pair.split(", "))): value for pair, value in self.agreement.items()}
        object.__setattr__(self, "agreement", pairs)

    @property
    def nearest(self) -> dict[str, str]:
        """Nearest task by measure."""
        return {measure: str(rows[0]["name"]) for measure, rows in self.rankings.items() if rows}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Relations(**facts)` makes it again."""
        return asdict(self)


def agreements(rankings: Sequence[Ranking]) -> dict[str, float]:
    """Rank correlation of each pair of rankings over their common tasks; pairs with fewer than three are left out.

    >>> first = Ranking.of("t", "a", {"x": [1.0], "y": [2.0], "z": [3.0]})
    >>> second = Ranking.of("t", "b", {"x": [3.0], "y": [2.0], "z": [1.0]})
    >>> agreements([first, second])
    {'a, b': -1.0}
    """
    correlations = {}
    for first, second in combinations(rankings, 2):
        ranks = {kin.name: rank for rank, kin in enumerate(second)}
        shared = [ranks[kin.name] for kin in first if kin.name in ranks]
        if len(shared) >= 3:
            correlations[f"{first.measure}, {second.measure}"] = float(
                stats.spearmanr(range(len(shared)), shared).statistic
            )
    return correlations
