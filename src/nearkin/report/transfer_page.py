"""Report of a transfer as one HTML page: its score from few labels, compared with other methods."""

from collections.abc import Mapping
from typing import Any

from nearkin import __version__
from nearkin.core.text import counted, duration, fact_text, metric_places, number, plain, verbatim
from nearkin.report import transfer_methods as methods
from nearkin.report.glossary import TRANSFER, glossary
from nearkin.report.html import HtmlTable, render
from nearkin.report.reproduction import setting
from nearkin.report.sections import Section
from nearkin.tasks.metrics import metric_title, share_interval
from nearkin.transfer.finetune import STEPS
from nearkin.zoo.transfer import Transfer

_CHOSEN = {
    "method": ("Method", "how a Gaussian posterior of class scores is computed from labels"),
    "alpha": (
        "Pseudo-count α",
        "of the Dirichlet transform; a small one trusts labels more; chosen on left-out labels",
    ),
    "scale": ("Scale of the kernel", "how far weights may change"),
    "temperature": (
        "Temperature",
        "class scores are divided by it before they become probabilities; chosen on left-out labels",
    ),
    "how": ("Probabilities", "softmax of the mean scores, or mean softmax of sampled scores"),
    "left_out_nll": ("Loss of left-out labels", "mean negative log probability of training labels, each left out once"),
    "log_evidence": ("Log evidence", "of the labels, by Laplace’s approximation"),
    "start": ("Start", "scores before any label is used: zero, or the network’s own"),
    "noise": ("Noise", "variance of an observation, in the scaled units that networks see; chosen by evidence"),
    "mean": ("Mean", "of the prior: a constant, or the network’s own outputs; chosen by evidence"),
    "layers": ("Scales of layers", "in addition to the common scale"),
    "space": (
        "Space",
        "where the linear system is solved: of functions, of weights, or iteratively without forming it",
    ),
}
_MADE = {
    "method": "Method",
    "how": "Probabilities",
    "weights": "Weights that may change",
    "trial": "Trial of the source",
    "samples": "Test samples (at most)",
    "steps": "Steps of the methods that train in steps",
    "seed": "Seed",
}
_USUAL = {
    "method": "dirichlet",
    "how": "mean",
    "weights": "all",
    "trial": 0,
    "samples": 2000,
    "steps": STEPS,
    "seed": 0,
}


def transfer_page(found: Transfer, *, command: str = "") -> str:
    """The report of a transfer as one HTML file that loads nothing from elsewhere.

    Args:
        found: the result of the transfer.
        command: the command that reproduces it.
    """
    return render(
        "transfer.html",
        source=plain(found.source),
        target=plain(found.target),
        sentence=methods.transfer_sentence(found),
        tiles=_tiles(found),
        cautions=_cautions(found),
        methods=methods.methods_section(found),
        certainty=methods.certainty_section(found),
        chosen=_chosen(found),
        origin=_origin(found),
        reproduce=_reproduce(found, command),
        glossary=glossary(TRANSFER),
    )


def _tiles(found: Transfer) -> list[tuple[str, str, str]]:
    places = metric_places(found.num_test)
    value, beside = number(found.metric, places), f"{methods.baseline_name(found)}: {number(found.guess, places)}"
    if methods.of_classes(found):
        low, high = share_interval(found.metric, found.num_test)
        value, beside = f"{100 * found.metric:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} % with 95 % certainty"
    return [
        (f"test {methods.metric_of(found)}", value, beside),
        ("nll", number(found.nll), "mean negative log probability of the test labels; small is good"),
        ("ece", number(found.ece), "calibration error of the probabilities; small is good"),
        ("time", duration(found.seconds), "to fit and to predict"),
        ("learned from", counted(found.num_train), f"tested on {counted(found.num_test)} samples"),
    ]


def _cautions(found: Transfer) -> list[str]:
    texts = []
    if found.source == found.target:
        texts.append("The source is the target itself: its network has already learned these labels.")
    if found.metric <= found.guess:
        name = methods.baseline_name(found).capitalize()
        texts.append(f"{name} scores as high: with so few labels, this source does not help with the target.")
    return texts


def _chosen(found: Transfer) -> Section:
    rows = []
    for key, value in found.outcome.facts.items():
        name, meaning = _CHOSEN.get(key, (plain(key).replace("_", " ").capitalize(), ""))
        if value is not None and value != {}:
            rows.append((name, setting(value), meaning))
    text = "Settings that were not given were chosen on the training set; the test set was not used."
    return {"rows": rows, "text": text if rows else "The chosen settings were not recorded."}


def _origin(found: Transfer) -> Section:
    known: Mapping[str, Any] = found.origin
    metric = known.get("metric")
    name = plain(metric_title(str(known.get("metric_name") or "metric")))
    sentences = []
    if metric is not None:
        places = metric_places(int(known.get("num_test") or 0))
        sentences.append(
            f"On its own task, “{plain(found.source)}” has {name} {number(float(metric), places)} on "
            f"{counted(int(known.get('num_test') or 0))} test samples. A source with a low score on its own "
            f"task, or whose task is not related to the target, helps little."
        )
    rows = [("Task", plain(found.source)), ("Network", plain(found.network))]
    for key, title in (
        ("parameters", "Parameters"),
        ("data", "Read from"),
        ("input_shape", "Input"),
        ("classes", "Classes"),
        ("num_outputs", "Outputs"),
        ("num_train", "Training samples"),
    ):
        value = known.get(key)
        if value is not None:
            rows.append((title, counted(value) if isinstance(value, int) else fact_text(value)))
    if "trial" in known:
        rows.append(("Trial", f"{known['trial']} of {counted(known.get('trials', 1))}, counted from 0"))
    return {"text": sentences, "table": HtmlTable("The source", ("Property", "Value"), rows, sortable=False)}


def _reproduce(found: Transfer, command: str) -> Section:
    made, classes = found.made, methods.of_classes(found)
    options = [f"shots={found.shots}"] if found.shots is not None else []
    options += [f"{key}={made[key]!r}" for key, value in _USUAL.items() if key in made and made[key] != value]
    given = made.get("given")
    target = f"nk.task({given!r})" if given else "task" if given == "" else repr(found.target)
    python = (
        f'import nearkin as nk\n\nwith nk.Zoo("nearkin-zoo") as zoo:\n'
        f"    found = zoo.transfer({', '.join([repr(found.source), target, *options])})\n"
        f"found.metric, found.nll, found.ece"
    )
    rows = [("Labels for each class" if classes else "Samples", setting(found.shots) if found.shots else "all")]
    for key, title in _MADE.items():
        if made.get(key) is not None and (classes or key not in ("method", "how")):
            rows.append((title, setting(made[key])))
    rows.append(("Version of nearkin", __version__))
    return {
        "command": verbatim(command) if command else "",
        "python": verbatim(python),
        "table": HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False),
    }
