"""Report of a transfer as one HTML page: its score from few labels, compared with other methods."""

from collections.abc import Mapping
from typing import Any

from nearkin import __version__
from nearkin.core.text import counted, duration, fact_text, metric_places, number, plain, verbatim
from nearkin.nets.adopted_spec import network_label
from nearkin.report import transfer_methods as methods
from nearkin.report.glossary import glossary
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


def transfer_page(transfer: Transfer, *, command: str = "") -> str:
    """The report of a transfer as one HTML file that loads nothing from elsewhere.

    Args:
        transfer: the result of the transfer.
        command: the command that reproduces it.
    """
    return render(
        "transfer.html",
        source=plain(transfer.source),
        target=plain(transfer.target),
        sentence=methods.transfer_sentence(transfer),
        tiles=_tiles(transfer),
        cautions=_cautions(transfer),
        methods=methods.methods_section(transfer),
        certainty=methods.certainty_section(transfer),
        chosen=_chosen(transfer),
        origin=_origin(transfer),
        reproduce=_reproduce(transfer, command),
        glossary=glossary("transfer"),
    )


def _tiles(transfer: Transfer) -> list[tuple[str, str, str]]:
    places = metric_places(transfer.num_test)
    value = number(transfer.metric, places)
    beside = f"{methods.baseline_name(transfer)}: {number(transfer.guess, places)}"
    if methods.of_classes(transfer):
        low, high = share_interval(transfer.metric, transfer.num_test)
        value, beside = f"{100 * transfer.metric:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} % with 95 % certainty"
    return [
        (f"test {methods.metric_of(transfer)}", value, beside),
        ("nll", number(transfer.nll), "mean negative log probability of the test labels; small is good"),
        ("ece", number(transfer.ece), "calibration error of the probabilities; small is good"),
        ("time", duration(transfer.seconds), "to fit and to predict"),
        ("learned from", counted(transfer.num_train), f"tested on {counted(transfer.num_test)} samples"),
    ]


def _cautions(transfer: Transfer) -> list[str]:
    texts = []
    if transfer.source == transfer.target:
        texts.append("The source is the target itself: its network has already learned these labels.")
    if transfer.metric <= transfer.guess:
        name = methods.baseline_name(transfer).capitalize()
        texts.append(f"{name} scores as high: with so few labels, this source does not help with the target.")
    return texts


def _chosen(transfer: Transfer) -> Section:
    rows = []
    for key, value in transfer.outcome.facts.items():
        name, meaning = _CHOSEN.get(key, (plain(key).replace("_", " ").capitalize(), ""))
        if value is not None and value != {}:
            rows.append((name, setting(value), meaning))
    text = "Settings that were not given were chosen on the training set; the test set was not used."
    return {"rows": rows, "text": text if rows else "The chosen settings were not recorded."}


def _origin(transfer: Transfer) -> Section:
    known: Mapping[str, Any] = transfer.origin
    metric = known.get("metric")
    name = plain(metric_title(str(known.get("metric_name") or "metric")))
    sentences = []
    if metric is not None:
        places = metric_places(int(known.get("num_test") or 0))
        sentences.append(
            f"On its own task, “{plain(transfer.source)}” has {name} {number(float(metric), places)} on "
            f"{counted(int(known.get('num_test') or 0))} test samples. A source with a low score on its own "
            f"task, or whose task is not related to the target, helps little."
        )
    rows = [("Task", plain(transfer.source)), ("Network", plain(network_label(transfer.network)))]
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


def _reproduce(transfer: Transfer, command: str) -> Section:
    settings, classes = transfer.made, methods.of_classes(transfer)
    options = [f"shots={transfer.shots}"] if transfer.shots is not None else []
    options += [
        f"{key}={settings[key]!r}" for key, value in _USUAL.items() if key in settings and settings[key] != value
    ]
    data = settings.get("given")
    target = f"nk.task({data!r})" if data else "task" if data == "" else repr(transfer.target)
    python = (
        f'import nearkin as nk\n\nwith nk.Zoo("nearkin-zoo") as zoo:\n'
        f"    result = zoo.transfer({', '.join([repr(transfer.source), target, *options])})\n"
        f"result.metric, result.nll, result.ece"
    )
    rows = [("Labels for each class" if classes else "Samples", setting(transfer.shots) if transfer.shots else "all")]
    for key, title in _MADE.items():
        if settings.get(key) is not None and (classes or key not in ("method", "how")):
            rows.append((title, setting(settings[key])))
    rows.append(("Version of nearkin", __version__))
    return {
        "command": verbatim(command) if command else "",
        "python": verbatim(python),
        "table": HtmlTable("Settings", ("Setting", "Value"), rows, sortable=False),
    }
