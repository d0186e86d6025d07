"""The part of the prediction page about questions: which measure answers which question."""

import math
from typing import Any

from results import table

SHOWN = (
    "short-finetune", "short-finetune-drawn", "short-finetune-scaled", "logme", "hscore", "knn", "leep", "frechet",
    "task2vec", "feature norm",
)  # fmt: skip
MOST_COST = 10
MARGIN = 0.01  # below it the simpler choice is taken
GOALS = {"final": 0.65, "speed": 0.85}
ANY = "any network"


def span(value: dict[str, float]) -> str:
    """A mean with its interval."""
    return f"{value['mean']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def signed(value: dict[str, float]) -> str:
    """A difference with its interval."""
    return f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"


def ceiling(r: float) -> float:
    """Highest correlation with the mean of two replicas that correlate at r."""
    return math.sqrt(2 * r / (1 + r))


def listed(names: list[str]) -> str:
    """Names of measures in a sentence."""
    return f"`{names[0]}`" if len(names) == 1 else "rank mean of " + ", ".join(f"`{name}`" for name in names)


def rows_of(answer: dict[str, Any]) -> list[list[str]]:
    """One row for each measure, the best on the targets of the choice first; the combination and the regression too."""
    rows = {name: (row, f"{row['cost']:.2g}") for name, row in answer["measures"].items()}
    if len(answer["chosen"]) > 1:
        rows[f"**{listed(answer['chosen'])}**"] = (answer["combination"], f"{answer['cost']:.2g}")
    rows["regression on all"] = (answer["regression"], "–")
    order = sorted(rows.items(), key=lambda item: -item[1][0]["choice"]["spearman"]["mean"])
    alone = answer["chosen"][0] if len(answer["chosen"]) == 1 else ""
    return [
        [
            f"**{name}**" if name == alone else name,
            *(span(row[group]["spearman"]) for group in ("choice", "held out")),
            *(span(row[group]["regret"]) for group in ("choice", "held out")),
            cost,
        ]
        for name, (row, cost) in order
    ]


def verdict(answer: dict[str, Any], question: str) -> str:
    """What was chosen and whether the goals are reached, in sentences."""
    held, cv = answer["combination"]["held out"], answer["cross-validated"]
    logme = answer["measures"]["logme"]["held out"]["regret"]["mean"]
    goal, value = GOALS[question], held["spearman"]["mean"]
    singles = {
        name: row for name, row in answer["combination less measure, held out"].items() if [name] != answer["chosen"]
    }
    above = [name for name, row in singles.items() if row["low"] > 0]
    others = [name for name in singles if name not in above]
    text = (
        f"Chosen: {listed(answer['chosen'])}. Cross-validated over targets: single measure "
        f"{span(cv['single measure'])}, rank mean {span(cv['rank mean'])}, regression {span(cv['regression'])}. On the "
        f"held-out targets: {span(held['spearman'])}; the goal of {goal:.2f} is "
        f"{'reached' if value >= goal else 'missed'}. It is above {len(above)} of {len(singles)} other measures with "
        f"an interval that excludes zero"
    )
    text += f", not above {', '.join(others)}." if others else "."
    if cv["regression"]["mean"] > cv["rank mean"]["mean"] + MARGIN:
        reason = "by the rule of `prediction_choice.py` it should replace the choice; it was not built"
        if answer["cost of the regression"] > MOST_COST:
            reason += f", and its measures cost {answer['cost of the regression']:.2g} times LogME's, above the limit"
        text += f" The regression is better in cross-validation; {reason}."
    half = "below" if held["regret"]["mean"] < logme / 2 else "not below"
    ten = "below" if answer["cost"] <= 10 else "above"
    return (
        f"{text} Regret of its first pick: {held['regret']['mean']:.2f}, {half} half of LogME's ({logme:.2f}). Cost: "
        f"{answer['cost']:.2g} times LogME's, {ten} the limit of ten."
    )


HEAD = ["measure", "Spearman, choice", "Spearman, held out", "regret, choice", "regret, held out", "cost"]


def questions_text(facts: dict[str, Any]) -> str:
    """The section as Markdown."""
    one, any_network = facts["one network"], facts[ANY]
    truths = [
        [truth, *(f"{row[name]:.2f}" for name in SHOWN)]
        for truth, row in facts["truths"].items()
        if truth not in ("final", "speed")
    ]
    again, spread = facts["repeat"], facts["spread of errors"]
    return f"""## Measures by question

`final`: held-out error after 300 steps of ordinary fine-tuning, the mean over drawn and scaled heads, Adam at 1e-3 and
SGD at 0.01. `speed`: area under the held-out loss over 60 steps of Adam from a head of zeros. Spearman correlation of
each measure with the truth within a target, mean over targets, 95 % interval by a bootstrap over targets.
{len(facts["targets"])} targets, {len(facts["networks"])} networks ({", ".join(facts["networks"])}), {facts["pairs"]}
pairs. The targets of {" and ".join(facts["held-out data"])} were never used for a choice ("held out"; the rule was
fixed before anything was measured). No source was trained on CIFAR-100. Regret: truth of the first pick minus that of
the best source, relative to a random source. Cost: process time relative to LogME's, features included; the
machine had other work. All sources of one network have the same size, so `size` predicts nothing there.

The runs of `final` were made twice for {len(facts["second targets"])} targets, with other batches, heads and held-out
samples. The two results correlate at {again["final"]:.2f} ({again["final @60"]:.2f} after 60 steps). By Spearman and
Brown a measure can then reach about {ceiling(again["final"]):.2f} ({ceiling(again["final @60"]):.2f}). After 300 steps
the standard deviation of the error over the sources of a target is {spread["final"]:.3f} ({spread["final @60"]:.3f}
after 60 steps), so the choice of the source matters little then.

### Final error

{verdict(one["final"], "final")}

{table(HEAD, rows_of(one["final"]))}

### Speed

{verdict(one["speed"], "speed")}

{table(HEAD, rows_of(one["speed"]))}

### Sources of any network

Sources of both networks in one ranking, as for candidates of different architectures. Only measures of features and
outputs can be compared.

Final error. {verdict(any_network["final"], "final")}

{table(HEAD, rows_of(any_network["final"]))}

Speed. {verdict(any_network["speed"], "speed")}

{table(HEAD, rows_of(any_network["speed"]))}

### All truths

Spearman correlation over all targets, held-out ones included. A truth is a head, an optimiser, and the error or the
area under the loss after 60 or 300 steps; `final @60` is the error of `final` after 60 steps.

{table(["truth", *SHOWN], truths)}
"""
