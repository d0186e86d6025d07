"""The report of a transfer: one HTML page that says what few labels came to, beside the usual ways."""

from collections.abc import Mapping
from typing import Any

from nearkin import __version__
from nearkin.core.text import counted, duration, fact_text, metric_places, number, plain, verbatim
from nearkin.report import transfer_ways as ways
from nearkin.report.html import Table, render
from nearkin.report.reproduction import setting
from nearkin.report.sections import Section
from nearkin.tasks.metrics import metric_title, share_interval
from nearkin.transfer.finetune import STEPS
from nearkin.zoo.transfer import Transfer

_CHOSEN = {
    "method": ("Method", "how labels become a Gaussian posterior of class scores"),
    "alpha": ("Pseudo-count α", "of the Dirichlet transform; a small one trusts labels more; by left-out labels"),
    "scale": ("Scale of the kernel", "how far weights may move"),
    "temperature": (
        "Temperature",
        "class scores are divided by it before they become probabilities; by left-out labels",
    ),
    "how": ("Probabilities", "softmax of the mean scores, or mean softmax of sampled ones"),
    "left_out_nll": ("Loss of left-out labels", "mean negative log probability of training labels, each left out once"),
    "log_evidence": ("Log evidence", "of the labels, by Laplace’s approximation"),
    "start": ("Start", "scores before any label is seen: zero, or the network’s own"),
    "noise": ("Noise", "variance of an observation, in the units in which networks see values; by evidence"),
    "mean": ("Mean", "of the prior: a constant, or the network’s own outputs; by evidence"),
    "layers": ("Scales of layers", "beside the common one"),
    "space": ("Space", "in which the linear system is solved: of functions, of weights, or without forming it"),
}
_MADE = {
    "method": "Method",
    "how": "Probabilities",
    "weights": "Weights that are free to move",
    "trial": "Trial of the source",
    "samples": "Test samples at the most",
    "steps": "Steps of the ways that train in steps",
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
    """The report of a transfer as one HTML file that fetches nothing.

    Args:
        found: what it came to.
        command: what to type to get it again.
    """
    return render(
        "transfer.html",
        source=plain(found.source),
        target=plain(found.target),
        sentence=ways.sentence(found),
        tiles=_tiles(found),
        cautions=_cautions(found),
        ways=ways.ways_section(found),
        certainty=ways.certainty_section(found),
        chosen=_chosen(found),
        origin=_origin(found),
        again=_again(found, command),
    )


def _tiles(found: Transfer) -> list[tuple[str, str, str]]:
    places = metric_places(found.num_test)
    value, span = number(found.metric, places), f"a blind guess: {number(found.guess, places)}"
    if ways.of_classes(found):
        low, high = share_interval(found.metric, found.num_test)
        value, span = f"{100 * found.metric:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} % with 95 % certainty"
    return [
        (ways.metric_of(found), value, span),
        ("nll", number(found.nll), "mean negative log probability of a test target"),
        ("ece", number(found.ece), "calibration error; small is good"),
        ("time", duration(found.seconds), "to fit and to predict"),
        ("learned from", counted(found.num_train), f"judged by {counted(found.num_test)} test samples"),
    ]


def _cautions(found: Transfer) -> list[str]:
    said = []
    if found.source == found.target:
        said.append("The source is the target itself: its network has seen these labels.")
    if found.metric <= found.guess:
        said.append("A blind guess does as well: this source tells nothing of the target from so few labels.")
    return said


def _chosen(found: Transfer) -> Section:
    rows = []
    for key, value in found.outcome.facts.items():
        name, why = _CHOSEN.get(key, (plain(key).replace("_", " ").capitalize(), ""))
        if value is not None and value != {}:
            rows.append((name, setting(value), why))
    words = "The training part chose what was not given; the test part decided nothing."
    return {"rows": rows, "words": words if rows else "Nothing was noted of what was chosen."}


def _origin(found: Transfer) -> Section:
    known: Mapping[str, Any] = found.origin
    metric = known.get("metric")
    name = plain(metric_title(str(known.get("metric_name") or "metric")))
    words = []
    if metric is not None:
        places = metric_places(int(known.get("num_test") or 0))
        words.append(
            f"On its own task, {plain(found.source)} has {name} {number(float(metric), places)} on "
            f"{counted(int(known.get('num_test') or 0))} test samples. A source that knows little of its own task, or "
            f"whose task has little to do with the target, has little to give."
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
        rows.append(("Trial", f"{known['trial']}, the first being 0; it has {counted(known.get('trials', 1))}"))
    return {"words": words, "table": Table("The source", ("What", "Value"), rows, sortable=False)}


def _again(found: Transfer, command: str) -> Section:
    made, classes = found.made, ways.of_classes(found)
    asked = [f"shots={found.shots}"] if found.shots is not None else []
    asked += [f"{key}={made[key]!r}" for key, value in _USUAL.items() if key in made and made[key] != value]
    given = made.get("given")
    target = f"nk.task({given!r})" if given else "task" if given == "" else repr(found.target)
    python = (
        f'import nearkin as nk\n\nwith nk.Zoo("nearkin-zoo") as zoo:\n'
        f"    found = zoo.transfer({', '.join([repr(found.source), target, *asked])})\n"
        f"found.metric, found.nll, found.ece"
    )
    rows = [("Labels a class" if classes else "Samples", setting(found.shots) if found.shots else "all")]
    for key, title in _MADE.items():
        if made.get(key) is not None and (classes or key not in ("method", "how")):
            rows.append((title, setting(made[key])))
    rows.append(("Version of nearkin", __version__))
    return {
        "command": verbatim(command) if command else "",
        "python": verbatim(python),
        "table": Table("Settings", ("What", "Value"), rows, sortable=False),
    }
