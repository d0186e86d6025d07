"""Relations: a target's kin by several measures, how far these agree, and whose cells and weights are used."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any, NotRequired, TypedDict

from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import current_name


class RankingRow(TypedDict):
    """What is used of a row of `Ranking.rows`; it holds more."""

    name: str
    distance: float
    std: float
    trials: list[float]
    form: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Relations:
    """Who is kin of the target.

    Attributes:
        rankings: by measure, the rows of `Ranking.rows`, nearest first.
        agreement: rank correlation of each two measures over the kin that both compare, by `one, other`.
        refused: why some could not be compared, by name.
        cells_of: whose cells the search begins with; None where it looks in the whole space.
        distance: Fréchet distance of that kin, or of the nearest that has cells; None where there is none.
        near: whether that is within the threshold.
        why: the choice of the search space, in words.
        threshold: what it was judged by (`Threshold.to_dict`), None without a kin that has cells.
        tuned: whose network is fine-tuned; None without kin.
        seconds: of measuring.
        form: of the Fréchet distance `distance`, see `distance.forms`; empty where that is None.
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
        """The nearest by each measure."""
        return {measure: str(rows[0]["name"]) for measure, rows in self.rankings.items() if rows}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Relations(**facts)` makes it again."""
        return asdict(self)


def agreements(rankings: Sequence[Ranking]) -> dict[str, float]:
    """Rank correlation of each two rankings over the kin that both know; pairs with fewer than three are left out.

    >>> one = Ranking.of("t", "a", {"x": [1.0], "y": [2.0], "z": [3.0]})
    >>> other = Ranking.of("t", "b", {"x": [3.0], "y": [2.0], "z": [1.0]})
    >>> agreements([one, other])
    {'a, b': -1.0}
    """
    found = {}
    for one, other in combinations(rankings, 2):
        places = {kin.name: rank for rank, kin in enumerate(other)}
        shared = [kin.name for kin in one if kin.name in places]
        if len(shared) >= 3:
            found[f"{one.measure}, {other.measure}"] = _spearman(
                range(len(shared)), _ranks([places[name] for name in shared])
            )
    return found


def _ranks(values: Sequence[int]) -> list[int]:
    order = sorted(values)
    return [order.index(value) for value in values]


def _spearman(one: Sequence[int], other: Sequence[int]) -> float:
    """Rank correlation of two permutations."""
    size = len(one)
    squares = fmean((a - b) ** 2 for a, b in zip(one, other, strict=True)) * size
    return 1 - 6 * squares / (size * (size**2 - 1))
