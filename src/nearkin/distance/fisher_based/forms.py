"""Forms of the Fréchet distance: a reading and an aggregate, and which form suits a pair of tasks.

The default is a `padded` form, which is asymmetric as the paper wants it; its aggregate was chosen on half of the tasks
of `benchmarks/same_question.py`. It needs labels that both networks can be given, and networks that start from the same
weights. Where one of these is missing, the label-free form `model` takes its place.
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
class Answers:
    """What a network answers.

    Attributes:
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        num_outputs: width of the last layer.
    """

    likelihood: str
    num_outputs: int


def can_pad(source: Answers, target: Answers) -> bool:
    """Whether the target's labels can be given to both networks, the narrower one widened.

    >>> two, ten, real = Answers("categorical", 2), Answers("categorical", 10), Answers("gaussian", 1)
    >>> can_pad(two, ten), can_pad(two, real)
    (True, False)
    """
    same_width = source.num_outputs == target.num_outputs
    return source.likelihood == target.likelihood and (same_width or target.likelihood in WIDENED)


def form_for(
    source: Answers, target: Answers, reading: str = AUTO, aggregate: str = AUTO, *, shared_start: bool = True
) -> Form:
    """The form by which two tasks are compared.

    Args:
        source: of the source's network.
        target: of the target's.
        reading: one of `READINGS`, or `auto`: `padded` where labels can be padded and starts are shared, else `model`.
        aggregate: one of `AGGREGATES`, or `auto`: the default's for labelled readings, the fall-back's for `model`.
        shared_start: whether both networks start from the same weights.

    >>> two, ten, real = Answers("categorical", 2), Answers("categorical", 10), Answers("gaussian", 1)
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
    """Refuse readings and aggregates that are unknown."""
    for what, value, known in (("reading", reading, READINGS), ("aggregate", aggregate, AGGREGATES)):
        if value != AUTO and value not in known:
            raise OptionError(f"{what} is one of {', '.join((AUTO, *known))}, got {value!r}")
