"""The prediction benchmark as a page of tables and as a plot."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from prediction_question_page import questions_text
from prediction_score import GROUPS
from results import table

PICKED = ("loss", "end", "accuracy")
OURS, OTHERS, WEAK = "#0072B2", "#666666", "#BBBBBB"


def span(figures: dict[str, float]) -> str:
    """A mean with its interval."""
    return f"{figures['mean']:.2f} ({figures['low']:.2f} to {figures['high']:.2f})"


def signed(figures: dict[str, float]) -> str:
    """A difference with its interval."""
    return f"{figures['mean']:+.3f} ({figures['low']:+.3f} to {figures['high']:+.3f})"


def shown(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Measures from the best to the worst; the schedule of `short-finetune` once."""
    rows = figures["measures"]
    twin = [name for name in rows if name != "kin" and rows[name] == rows["kin"]]
    left = [(name, row) for name, row in rows.items() if name not in twin]
    return sorted(left, key=lambda item: -item[1]["area"]["all"]["mean"])


def main_table(figures: dict[str, Any]) -> str:
    head = ["measure", "all sources", "same data", "other data", "(b) steps", "(c) accuracy", "regret", "AUROC", "cost"]
    lines = []
    for name, row in shown(figures):
        lines.append(
            [
                f"**{name}**" if name == "kin" else name,
                *(span(row["area"][group]) for group in GROUPS),
                *(f"{row[truth]['all']['mean']:.2f}" for truth in ("steps", "accuracy")),
                span(row["regret"]),
                span(row["auroc"]),
                f"{row['cost']['mean']:.2g}",
            ]
        )
    ceiling = figures["ceiling"]
    best = [f"{ceiling['area'][group]['ceiling']:.2f}" for group in GROUPS]
    rest = [f"{ceiling[truth]['all']['ceiling']:.2f}" for truth in ("steps", "accuracy")]
    return table(head, [*lines, ["*what can be reached*", *best, *rest, "0", "1", "–"]])


def left_out_table(figures: dict[str, Any]) -> str:
    head = ["judged on targets left out", "all sources", "other data", "gain over kin, all", "gain over kin, other"]
    lines = []
    for name, row in figures["left out"].items():
        area, more = row["area"], row["gain over kin"]
        lines.append([name, span(area["all"]), span(area["other"]), signed(more["all"]), signed(more["other"])])
    return table(head, lines)


def network_table(figures: dict[str, Any]) -> str:
    head = ["network", "logme, all", "kin, all", "logme, other data", "kin, other data", "cost of kin"]
    costs = figures["measures"]["kin"]["cost"]
    costs = {**costs, **dict.fromkeys(set(figures["by network"]) - set(costs), costs["mean"])}
    lines = [
        [
            network,
            *(span(row[name][group]) for group in ("all", "other") for name in ("logme", "kin")),
            f"{costs[network]:.2g}",
        ]
        for network, row in figures["by network"].items()
    ]
    return table(head, lines)


def drawn_text(figures: dict[str, Any]) -> str:
    drawn = figures["drawn heads"]
    if not drawn:
        return ""
    rows = sorted(drawn["measures"].items(), key=lambda item: -item[1]["area"]["all"]["mean"])
    lines = [[name, *(span(row["area"][group]) for group in GROUPS), span(row["regret"])] for name, row in rows]
    lines.append(["*what can be reached*", *(f"{drawn['ceiling'][group]['ceiling']:.2f}" for group in GROUPS), "0"])
    cells = [
        [
            head,
            *(f"{row[key]:.2f}" for key in ("area", "end", "accuracy")),
            f"{row['beats scratch']:.0%}",
            f"{row['repeat']:.2f}",
        ]
        for head, row in drawn["heads"].items()
    ]
    picked = [
        [name, *(f"{row[name][key]:.3f}" for row in drawn["picks"].values() for key in ("area", "end", "accuracy"))]
        for name in drawn["picks"]["zero"]
    ]
    facts = [
        "head",
        "mean loss of the run",
        "loss at its end",
        "accuracy, step 25",
        "beat scratch",
        "replicas correlate",
    ]
    return f"""### Heads drawn at random

Above, fine-tuning starts from a head of zeros. On {drawn["columns"]} of the
targets ({", ".join(drawn["networks"])}) it was also started from heads as `nn.Linear` draws them, another one for every
replica; scratch is started alike. Both starts, mean over all sources:

{table(facts, cells)}

From the source that a measure puts first:

{table(["first by", *(f"{label}, {head} head" for head in drawn["picks"] for label in PICKED)], picked)}

The two orders of sources agree at {span(drawn["zero with drawn"]["all"])} only, so no measure can predict both: the
output of a drawn head grows with the features, so large features mean a bad start, while a head of
zeros learns faster with large features. To fine-tune from a drawn head, measure with drawn heads,
`short_finetune_loss(..., head="drawn")`: its advantage over LogME is
{signed(drawn["kin, drawn heads, less logme"])}. Spearman
with the
area, and regret:

{table(["measure", "all sources", "same data", "other data", "regret"], lines)}
"""


def recipes_text(figures: dict[str, Any]) -> str:
    head = [
        "fine-tuning by",
        "replicas",
        "logme",
        "kin",
        "kin, its pace",
        "logme, other",
        "kin, other",
        "its pace, other",
    ]
    names = ("logme", "kin", "kin, its pace")
    lines = []
    for name, row in figures["recipes"].items():
        cells = [f"{row[m][g]:.2f}" if m in row else "–" for g in ("all", "other") for m in names]
        lines.append([name, f"{row['repeat']['all']:.2f}", *cells])
    return f"""### Other recipes

`short-finetune` was made for 60 steps at 1e-3. On the multilayer perceptron and one seed, other runs; "its pace"
sets the rate so
that its steps go as far as the run does.

{table(head, lines)}
"""


def caution(figures: dict[str, Any]) -> str:
    """Text that explains the figures."""
    drawn = figures["drawn heads"]
    if not drawn:
        return ""
    kin, own, logme = (drawn["measures"][name]["area"]["all"]["mean"] for name in ("kin", "kin, drawn heads", "logme"))
    return f"""Note. In the first table, fine-tuning starts from heads of zeros, and so does
`short-finetune` (`kin` in the tables). That start was
chosen after heads drawn as `nn.Linear` draws them had been tried; repeated runs with those agreed at
{drawn["ceiling"]["all"]["repeat"]:.2f} only. With drawn heads `short-finetune` has no advantage: it correlates at
{kin:.2f} over all sources, with drawn heads of its own at {own:.2f}, LogME at {logme:.2f}, and their first picks are
about equally good (last tables). The step size and number of steps of `short-finetune` were selected on the first
seed, from
about twenty settings; the second table
has a line of the second seed alone, and "pace chosen" shows a pace picked without a target's data set and network.
The machine had other work while times were measured.
"""


def page(facts: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    margin, kin = facts["kin less logme"]["area"], facts["measures"]["kin"]
    return f"""<!-- written by benchmarks/prediction.py -->
# What predicts fine-tuning

{questions_text(facts["questions"]) if "questions" in facts else ""}
## Speed in detail

{caution(facts)}
Spearman correlation of each measure with (a) the area under the held-out loss of fine-tuning, within a target over its
23 sources: mean over {facts["columns"]} targets ({len(facts["tasks"])} tasks, {len(facts["networks"])} networks,
{len(facts["seeds"])} seeds; {facts["pairs"]} pairs), 95 % interval by a bootstrap over tasks; then with (b) and (c).
Regret: area of the first pick minus that of the best source, relative to a random source. AUROC: how well the
measure, minus its value at
the initialisation, tells whether a source beats training from scratch. Cost: process time in units of
LogME's, features included, mean over the networks. "fast KxB" is `short-finetune` at K steps of B samples that go
as far as the
run; the run itself costs three times "20 real steps". The cost of `task2vec` is that of comparing embeddings: computing
them takes a fitted head and a Fisher pass for each task, once for all pairs, which is not included. The cost of
`near` is in
[Cost of ranking related tasks](near-benchmark.md).

{main_table(facts)}

`short-finetune` minus LogME: all sources {signed(margin["all"])}, same data {signed(margin["same"])}, other data
{signed(margin["other"])}. The goals were 0.80 over all sources, 0.55 among those from other data, and ten times LogME's
cost; the results are {kin["area"]["all"]["mean"]:.2f}, {kin["area"]["other"]["mean"]:.2f} and
{kin["cost"]["mean"]:.2g}.

![Correlations of all measures with the area under the loss](../images/prediction.svg)

{network_table(facts)}

### Combinations of measures

Ridge regressions on measures standardised within a target, fitted without the target's data set and without its
network; last, `short-finetune` with the pace that is best there.

{left_out_table(facts)}

{recipes_text(facts)}
{drawn_text(facts)}"""


def plot(figures: dict[str, Any], file: Path) -> None:
    """Correlations of all measures with the area, over all sources and over those from other data."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearkin", "font.size": 9})
    rows = shown(figures)[::-1]
    figure, panel = plt.subplots(figsize=(8, 0.26 * len(rows) + 1.2), layout="constrained")
    for group, colour, offset in (("all", OTHERS, 0.14), ("other", WEAK, -0.14)):
        for index, (name, row) in enumerate(rows):
            value = row["area"][group]
            shade = OURS if name == "kin" else colour
            mark = {"all": "o", "other": "D"}[group]
            panel.plot([value["low"], value["high"]], [index + offset] * 2, color=shade, linewidth=1.4)
            panel.plot(value["mean"], index + offset, mark, color=shade, markersize=4.5)
    for group, mark, label in (("all", "o", "all sources"), ("other", "D", "sources from other data")):
        panel.plot([], [], mark, color=OTHERS if group == "all" else WEAK, label=label, markersize=4.5)
    panel.axvline(figures["ceiling"]["area"]["all"]["ceiling"], color="black", linewidth=0.8, linestyle=":")
    panel.axvline(0, color="black", linewidth=0.6)
    panel.set_yticks(range(len(rows)), [name for name, _ in rows])
    panel.set(xlim=(-0.5, 1.02), ylim=(-0.7, len(rows) - 0.3))
    panel.set_xlabel("Spearman correlation with the area under the fine-tuning loss (dotted: what can be reached)")
    panel.legend(loc="lower right", frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
