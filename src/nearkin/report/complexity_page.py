"""Report of the complexity of a task as one HTML page: its terms and the structure function."""

from nearkin import __version__
from nearkin.core.text import brief, counted, duration, number, plain, verbatim
from nearkin.distance.information.task_complexity import Complexity
from nearkin.nets.adopted_spec import network_label
from nearkin.report.axes import FONT, NARROW, WIDTH, Field, Scale, frame, scale_around
from nearkin.report.glossary import glossary
from nearkin.report.html import HtmlTable, figure, render
from nearkin.report.svg import Canvas
from nearkin.zoo.complexity import TaskComplexity

_CAPTION = (
    "Every point is measured at one price β of information. The line below the points is the structure function: "
    "with more information in the weights, a smaller loss is possible. Points far above the line are prices at which "
    "the loss is no longer quadratic around the weights. The large point is the chosen β."
)
_CRITICAL = "The dashed line is the critical β, at which the information falls fastest."
_FIXED = "The weights are the same for every point, only their precision changes."


def complexity_page(result: TaskComplexity, *, command: str = "") -> str:
    """The report of a complexity as one HTML file that loads nothing from elsewhere.

    Args:
        result: the complexity with its structure function.
        command: the command that reproduces it.
    """
    picture = figure(
        lambda width, name: structure_picture(result, width, name),
        "nk-structure",
        "Structure function",
        f"{_CAPTION} {_FIXED if result.critical_beta is None else _CRITICAL}",
        _curve_table(result),
    )
    return render(
        "complexity.html",
        task=plain(result.task),
        sentence=_sentence(result),
        tiles=_tiles(result),
        cautions=_cautions(result),
        figure=picture,
        terms=_terms(result.found),
        command=verbatim(command),
        settings=_settings(result),
        glossary=glossary("complexity"),
    )


def structure_picture(result: TaskComplexity, width: int = WIDTH, name: str = "nk-structure") -> str:
    """SVG of the expected loss against the information in the weights, with the chosen and the critical β."""
    narrow, points = width <= NARROW, result.structure.points
    field = Field(52.0 if narrow else 60.0, 30.0, width - 22.0, 30.0 + (250.0 if narrow else 310.0))
    draw = Canvas(width, round(field.bottom + 42))
    losses, amounts = [point.expected_loss for point in points], [point.information for point in points]
    x = scale_around(amounts, field.left, field.right)
    y = scale_around(losses, field.bottom, field.top + 4)
    frame(draw, field, x, y, ("information in the weights in nats", "expected loss in nats"))
    if result.critical_beta is not None:
        _mark_critical(draw, field, x, result)
    envelope = [(x(amount), y(loss)) for amount, loss in result.structure.envelope()]
    if len(envelope) > 1:
        draw.line(*envelope, stroke="kin", width=1.8)
    for point in points:
        chosen = point.beta == result.found.beta
        tip = (
            f"β = {brief(point.beta)}: {number(point.information, 1)} nats of information, "
            f"loss {number(point.expected_loss, 1)}"
        )
        at = x(point.information), y(point.expected_loss)
        draw.circle(*at, 5.5 if chosen else 2.8, fill="target" if chosen else "kin", stroke="paper", tip=tip)
        if chosen:
            end = at[0] > (field.left + field.right) / 2
            draw.text(at[0] + (-8 if end else 9), at[1] - 8, f"β = {brief(point.beta)}", size=12, fill="target",
                      bold=True, anchor="end" if end else "start", halo=True)  # fmt: skip
    return draw.svg(
        name,
        f"Structure function of {plain(result.task)}",
        f"The expected loss falls from {number(max(losses), 1)} to {number(min(losses), 1)} nats while the information "
        f"grows from {number(min(amounts), 1)} to {number(max(amounts), 1)} nats.",
    )


def _mark_critical(draw: Canvas, field: Field, x: Scale, result: TaskComplexity) -> None:
    """A dashed line between the two points around the critical β."""
    critical, points = result.structure.critical_beta, result.structure.points
    below = max((point for point in points if point.beta <= critical), key=lambda point: point.beta)
    above = min((point for point in points if point.beta >= critical), key=lambda point: point.beta)
    at, text = (x(below.information) + x(above.information)) / 2, f"critical β = {brief(critical)}"
    draw.line((at, field.top), (at, field.bottom), stroke="muted", dashed=True, tip=text)
    right = at < (field.left + field.right) / 2
    anchor = "start" if right else "end"
    draw.text(at + (6 if right else -6), field.top + 12, text, size=FONT, fill="muted", anchor=anchor)


def _sentence(result: TaskComplexity) -> str:
    found = result.found
    relative = f", relative to the network of “{plain(result.given)}”" if result.given else ""
    return (
        f"The weights of {plain(network_label(result.network))} store {number(found.information, 0)} nats "
        f"({number(found.information_bits, 0)} bits) about {counted(found.num_samples, 'sample')} of "
        f"“{plain(result.task)}”{relative}."
    )


def _tiles(result: TaskComplexity) -> list[tuple[str, str, str]]:
    found = result.found
    error = f"standard error {number(found.error, 1)}" if found.error else "expected loss + β · information"
    tiles = [
        ("complexity", number(found.complexity, 1), f"nats for β = {brief(found.beta)}; {error}"),
        ("expected loss", number(found.expected_loss, 1), f"nats; {number(found.loss, 1)} at the weights themselves"),
        ("information", number(found.information, 1), f"nats; {number(found.information_bits, 1)} bits"),
        ("effective dimension", number(found.effective_dimension.value, 1), f"of {counted(found.num_weights)} weights"),
    ]
    if result.critical_beta is not None:
        tiles.append(("critical β", brief(result.critical_beta), "information falls fastest there"))
    return tiles


def _cautions(result: TaskComplexity) -> list[str]:
    if result.found.curvature in ("kronecker", "diagonal", "block"):
        return [
            f"The curvature is approximate ({result.found.curvature}): use the values to compare tasks, not as exact "
            f"amounts of information."
        ]
    return []


def _terms(found: Complexity) -> HtmlTable:
    half = found.beta / 2
    rows = [
        ("Loss of the weights, L(w)", number(found.loss, 2)),
        ("β/2 · ‖w − w₀‖² / λ²", number(half * found.weight_term, 2)),
        ("β/2 · log|I + (λ²/β) H|", number(half * found.log_determinant.value, 2)),
        ("Complexity: the sum", number(found.complexity, 2)),
    ]
    return HtmlTable("Terms of the complexity in nats", ("Term", "Value"), rows, frozenset({1}), 3, sortable=False)


def _curve_table(result: TaskComplexity) -> HtmlTable:
    points = result.structure.points
    rows = [
        (brief(point.beta), number(point.information, 1), number(point.expected_loss, 1), number(point.complexity, 1))
        for point in points
    ]
    marked = next(row for row, point in enumerate(points) if point.beta == result.found.beta)
    heads = ("β", "Information (nats)", "Expected loss (nats)", "Complexity (nats)")
    return HtmlTable("Points of the structure function", heads, rows, frozenset(range(4)), marked)


def _settings(result: TaskComplexity) -> HtmlTable:
    found = result.found
    rows = [
        ("Network", plain(network_label(result.network))),
        ("Weights", counted(found.num_weights)),
        ("Samples", counted(found.num_samples)),
        ("Prior", f"around {'the weights of ' + plain(result.given) if result.given else 'zero'}, variance "
                  f"{brief(found.prior_variance)}"),
        ("Curvature", f"{found.curvature} ({found.reason})"),
        ("Time", duration(result.seconds)),
        ("Version of nearkin", __version__),
    ]  # fmt: skip
    return HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False)
