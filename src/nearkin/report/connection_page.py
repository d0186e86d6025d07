"""Report of a path between two solutions as a picture and as one HTML page: losses, barriers, and D of training."""

from nearkin import __version__
from nearkin.core.text import counted, duration, number, percent, plain, verbatim
from nearkin.distance.reachability.string_method import BETWEEN
from nearkin.nets.adopted_spec import network_label
from nearkin.report.axes import WIDTH
from nearkin.report.curves import Curve, chart
from nearkin.report.glossary import glossary
from nearkin.report.html import HtmlTable, figure, render
from nearkin.zoo.connect import Connection

DRIFT = (
    "Training does not wait for noise to carry it over a barrier: in its first phase it follows the slope of the loss, "
    "and the measured time rises with the noise where Kramers’ formula predicts that it falls. Read the figure as the "
    "height of the barrier in units of the noise, not as a forecast."
)


def connection_page(connection: Connection, *, command: str = "") -> str:
    """The report as one HTML file that loads nothing from elsewhere.

    Args:
        connection: result of the measurement.
        command: the command that reproduces it.
    """
    picture = figure(
        lambda width, name: connection_picture(connection, width, name),
        "nk-path",
        "Loss along both paths",
        f"Mean loss on {_samples(connection)}, from {_end(connection, 0)} (0 %) to {_end(connection, 1)} (100 %). "
        f"Both curves are measured at {counted(len(connection.straight))} points.",
        _images_table(connection),
    )
    return render(
        "connection.html",
        title=f"Path from {_end(connection, 0)} to {_end(connection, 1)}",
        sentence=connection_sentence(connection),
        tiles=_tiles(connection),
        measured=measured_text(connection),
        path=picture,
        noise=noise_text(connection),
        command=verbatim(command),
        settings=_settings(connection),
        glossary=glossary("connection"),
    )


def connection_picture(connection: Connection, width: int = WIDTH, name: str = "nk-path") -> str:
    """SVG of the losses along the straight line and along the minimised path."""
    curves = [
        Curve(title, tuple((100 * n / (len(values) - 1), value) for n, value in enumerate(values)), chosen)
        for title, values, chosen in (
            ("straight line", connection.straight, False),
            ("minimised path", connection.minimised, True),
        )
    ]
    words = ("share of the path in %", f"mean loss on {' and '.join(map(plain, connection.measured_on))}")
    title = f"Path from {_end(connection, 0)} to {_end(connection, 1)}"
    return chart(curves, width, words, log=False, steps=False).svg(name, title, connection_sentence(connection))


def connection_sentence(connection: Connection) -> str:
    """The answer: the barriers of both paths."""
    names = f"{_end(connection, 0)} and {_end(connection, 1)}"
    straight, lowered = number(connection.straight_barrier, 4), connection.lowered
    if lowered is None:
        return (
            f"Between {names} there is no barrier: on the straight line the loss never exceeds that of the higher end."
        )
    if connection.barrier <= 0:
        return f"{names} are connected by a path without a barrier; on the straight line the barrier is {straight}."
    return (
        f"Between {names} the barrier is {number(connection.barrier, 4)} on the minimised path and {straight} on the "
        f"straight line: it fell by {percent(lowered)}."
    )


def measured_text(connection: Connection) -> list[str]:
    """Sentences on what was measured: the loss, the heads, the alignment."""
    texts = [
        f"A barrier is the largest loss on a path, at and between its images, minus the loss of its higher end. The "
        f"loss is the mean on {_samples(connection)}."
    ]
    if connection.start != connection.end:
        texts.append(
            "Each solution has its own head for its own task, and for the other task a linear head that was fitted to "
            "the features of its encoder. All weights move along the path, also the heads."
        )
    if connection.agreement is not None:
        before, after = connection.agreement
        texts.append(
            f"The hidden units of the end were put into the order of the start’s units, which does not change what the "
            f"network computes; their mean correlation rose from {number(before)} to {number(after)}."
        )
    return texts


def noise_text(connection: Connection) -> list[str]:
    """Sentences on D and the barrier in units of D; empty without D."""
    noise, kramers = connection.noise, connection.kramers
    if noise is None or kramers is None:
        return []
    adaptive = "" if noise["optimiser"] == "sgd" else f" (the recipe itself has {plain(noise['optimiser'])})"
    texts = [
        f"At the start, the gradients of single samples of “{plain(noise['task'])}” have a variance of "
        f"{noise['variance']:.3g} per weight. With the learning rate {noise['learning_rate']:g} and the batch size "
        f"{noise['batch_size']} of the stored recipe, plain stochastic gradient descent{adaptive} has the diffusion "
        f"constant D = {noise['diffusion']:.3g}."
    ]
    if kramers["rise"] > 0:
        texts.append(
            f"The path rises by {number(kramers['rise'], 4)} above its start, {_rough(kramers['rise_over_diffusion'])} "
            f"times D. Kramers’ time to cross it by noise alone has the factor exp(ΔU/D), which is "
            f"{_power(kramers['log10_factor'])}."
        )
    else:
        texts.append("The minimised path has no barrier, so there is nothing to cross by noise.")
    return [*texts, DRIFT]


def _rough(value: float) -> str:
    """A number in three significant digits.

    >>> _rough(7044705.1), _rough(0.1234)
    ('7,040,000', '0.123')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _power(exponent: float) -> str:
    """A power of ten, as a number or by its digits.

    >>> _power(2.0), _power(3059476.6)
    ('100', 'a number of about 3,060,000 digits')
    """
    return _rough(10**exponent) if exponent < 6 else f"a number of about {_rough(exponent)} digits"


def _end(connection: Connection, number: int) -> str:
    """Name of an end; with its trial if both ends are of one task."""
    name = (connection.start, connection.end)[number]
    both = f", trial {connection.options.trials[number]}" if connection.start == connection.end else ""
    return f"“{plain(name)}”{both}"


def _samples(connection: Connection) -> str:
    names = " and ".join(f"“{plain(name)}”" for name in connection.measured_on)
    return f"{counted(connection.num_samples, 'training sample')} of {names}"


def _tiles(connection: Connection) -> list[tuple[str, str, str]]:
    straight, minimised = connection.lengths
    return [
        ("barrier", number(connection.barrier, 4), "on the minimised path"),
        ("straight barrier", number(connection.straight_barrier, 4), "on the straight line"),
        ("length", number(minimised, 2), f"the straight line has {number(straight, 2)}"),
        ("parameters", counted(connection.parameters), f"of {plain(network_label(connection.network))}"),
        ("time", duration(connection.seconds), counted(connection.iterations, "iteration")),
    ]


def _images_table(connection: Connection) -> HtmlTable:
    rows = [
        (percent(share), number(straight, 4), number(minimised, 4)) for share, straight, minimised in connection.images
    ]
    heads = ("Share of the path", "Straight line", "Minimised path")
    return HtmlTable("Loss at the images of the path", heads, rows, frozenset({0, 1, 2}), sortable=False)


def _settings(connection: Connection) -> HtmlTable:
    options = connection.options
    rows = [
        ("Network", plain(network_label(connection.network))),
        ("Trials of start and end", ", ".join(map(str, options.trials))),
        ("Loss on", " and ".join(map(plain, connection.measured_on))),
        ("Units aligned", "no" if connection.agreement is None else "yes"),
        ("Samples of a task (at most)", counted(options.samples)),
        ("Images of the path", counted(options.images)),
        ("Points between two images", counted(BETWEEN - 1)),
        ("Iterations (at most)", counted(options.iterations)),
        ("Version of nearkin", __version__),
    ]
    return HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False)
