"""Forms of the Fréchet distance: a reading and an aggregate, selected for a pair of tasks.

The default is a `padded` form, which is asymmetric as in the paper; its aggregate was selected on half of the tasks of
`benchmarks/same_question.py`. It needs labels that fit both networks, and networks that start from the same weights.
Otherwise the label-free form `model` is used.
"""

from dataclasses import dataclass

from nearkin.core.errors import OptionError
from nearkin.distance.fisher_based.frechet import AGGREGATES
from nearkin.distance.fisher_based.readings import READINGS
from nearkin.distance.fisher_based.widening import WIDENED

AUTO = "auto"


@dataclass(frozen=True)
class Form:
    """A form of the Fréchet distance; distances of two forms are not comparable.

    Attributes:
        reading: one of `READINGS`.
        aggregate: one of `AGGREGATES`.

    >>> str(Form("padded", "weight"))
    'padded/weight'
    """

    reading: str
    aggregate: str

    def __str__(self) -> str:
        return f"{self.reading}/{self.aggregate}"


DEFAULT = Form("padded", "mixed")
FALLBACK = Form("model", "sorted")


@dataclass(frozen=True)
class OutputType:
    """Likelihood and number of outputs of a network.

    Attributes:
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        num_outputs: width of the last layer.
    """

    likelihood: str
    num_outputs: int


def can_pad(source: OutputType, target: OutputType) -> bool:
    """Whether the target's labels fit both networks after the narrower one is widened.

    >>> two, ten, real = OutputType("categorical", 2), OutputType("categorical", 10), OutputType("gaussian", 1)
    >>> can_pad(two, ten), can_pad(two, real)
    (True, False)
    """
    same_width = source.num_outputs == target.num_outputs
    return source.likelihood == target.likelihood and (same_width or target.likelihood in WIDENED)


def form_for(
    source: OutputType, target: OutputType, reading: str = AUTO, aggregate: str = AUTO, *, shared_start: bool = True
) -> Form:
    """The form for the comparison of two tasks.

    Args:
        source: of the source's network.
        target: of the target's network.
        reading: one of `READINGS`, or `auto`: `padded` if labels can be padded and starts are shared, else `model`.
        aggregate: one of `AGGREGATES`, or `auto`: `mixed` for readings with labels, `sorted` for `model`.
        shared_start: whether both networks start from the same weights.

    >>> two, ten, real = OutputType("categorical", 2), OutputType("categorical", 10), OutputType("gaussian", 1)
    >>> form_for(two, ten) == DEFAULT, form_for(two, real) == form_for(two, ten, shared_start=False) == FALLBACK
    (True, True)
    """
    require_form(reading, aggregate)
    if reading == AUTO:
        reading = DEFAULT.reading if shared_start and can_pad(source, target) else FALLBACK.reading
    if aggregate == AUTO:
        aggregate = (FALLBACK if reading == FALLBACK.reading else DEFAULT).aggregate
    return Form(reading, aggregate)


def require_form(reading: str, aggregate: str) -> None:
    """Refuse unknown readings and aggregates."""
    for name, value, known in (("reading", reading, READINGS), ("aggregate", aggregate, AGGREGATES)):
        if value != AUTO and value not in known:
            raise OptionError(f"{name} is one of {', '.join((AUTO, *known))}, got {value!r}")
