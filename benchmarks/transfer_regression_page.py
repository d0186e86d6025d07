"""The page of the regression experiments and its picture, from the figures alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from results import table

OURS, META, RIVAL, BAND = "#0067a8", "#7b4fa3", "#b34700", "#dddddd"
MINE, BETTER = "network, blended", "network meta-learned, blended"
GIVEN = (5, 10, 20, 30)
WORDS = {"rmse": "error", "nll": "NLL"}
STYLES = {
    "network": (OURS, "o-"),
    "blind": ("#777777", ":"),
    "mean of the given": ("#777777", "--"),
    "last layer, retrained": (RIVAL, "s-"),
    "last layer": ("#e69f00", "D-"),
    "RBF, own": ("#3c8d53", "^-"),
}


def span(value: Mapping[str, float], places: int = 2) -> str:
    return f"{value['mean']:.{places}f} ({value['low']:.{places}f} to {value['high']:.{places}f})"


def signed(value: Mapping[str, float], places: int = 2) -> str:
    return f"{value['mean']:+.{places}f} ({value['low']:+.{places}f} to {value['high']:+.{places}f})"


def scores(group: Mapping[str, Any]) -> str:
    lines = [
        [way, span(row["rmse"]), span(row["nll"]), f"{row['median nll']:.2f}", span(row["coverage"])]
        for way, row in group["ways"].items()
    ]
    return table(["way", "error", "NLL", "median NLL", "coverage"], lines)


def verdict(less: Mapping[str, Any], measure: str) -> str:
    """Which methods are worse, better, or not distinguishable, by intervals of paired differences."""
    groups: dict[str, list[str]] = {"better than": [], "worse than": [], "not distinguishable from": []}
    for way, row in less.items():
        value = row[measure]
        side = "better than" if value["high"] < 0 else "worse than" if value["low"] > 0 else "not distinguishable from"
        groups[side].append(f"{way} ({value['mean']:+.2f})")
    return "; ".join(f"{side} {', '.join(some)}" for side, some in groups.items() if some)


def sinusoids(figures: Mapping[str, Any], kind: str) -> str:
    group = figures["sinusoids"][kind]
    each = ", ".join(f"{value:.2f}" for value in group["ways"][MINE]["coverage by source"])
    pooled = ", ".join(f"{value:.2f}" for value in group["ways"]["network, pooled"]["coverage by source"])
    noise = ", ".join(f"{facts['hyper']['noise']:.2g}" for facts in group["facts"])
    text = f"""### {kind.capitalize()} frequencies

{group["sources"]} source networks, {group["tasks"]} tasks each.

{scores(group)}

Coverage by source network: blended {each}; pooled {pooled}. Pooled noise, by source: {noise}.

`{MINE}`, by NLL: {verdict(group["less"][MINE], "nll")}.

By error: {verdict(group["less"][MINE], "rmse")}.
"""
    if BETTER in group["less"]:
        text += f"""
`{BETTER}`, by NLL: {verdict(group["less"][BETTER], "nll")}.

By error: {verdict(group["less"][BETTER], "rmse")}.
"""
    return text + "\n"


def rain(figures: Mapping[str, Any]) -> str:
    group = figures["rain"]
    some = (MINE, "network, pooled", "network, own", "last layer, own", "RBF, own")
    lines = [
        [target, *(f"{ways[way][1]:.2f}, {ways[way][2]:.2f}" for way in some)]
        for target, ways in group["targets"].items()
    ]
    stations = table(["target: NLL, coverage", *some], lines)
    return f"""## Rain

Averaged daily precipitation of four stations of the US Historical Climatology Network (Livermore in California, three
of Rhode Island): ten months are training data, November and December test data, in units of the standard
deviation of the training days. A network with one hidden layer of 400 tanh units is trained on one station by the
paper's recipe; then it is transferred to the other three in closed form. Hyper-parameters are pooled over the stations
that are not the target. *RBF, of the source* is fitted to the source station and not changed, as in the paper's
figure 2. There are {group["pairs"]} pairs of source and target, each the mean over three seeds. Intervals are by a
bootstrap over pairs; the pairs share four targets, so the intervals are somewhat too narrow.

{scores(group)}

`{MINE}`, by NLL: {verdict(group["less"][MINE], "nll")}.

By error: {verdict(group["less"][MINE], "rmse")}.

{stations}

Hyper-parameters from stations of Rhode Island fit the other stations there. They do not fit Livermore, where it rains
in winter: hyper-parameters of the station itself are far better. The paper also reports failure if the climates are not
related. The two test months lie outside of the training days, so little is known about them; predicting the mean has
an error of 1. At the paper's learning rate of 1e-4 the network stays so close to its initial weights that its tangent
kernel and its last layer give the same predictions.
"""


def malaria(figures: Mapping[str, Any]) -> str:
    text = """## Malaria

The paper's map of Nigeria is not available; two surveys replace it. A network 2-64-64-2 (a mean and a variance) is
trained on one survey with the heteroscedastic likelihood. Then some places of another survey are given, with the
binomial variance of each. The error is that on the other places, in shares of people with the parasite. *Blind* is the
source network without any change. *Last layer, retrained* is trained for 100 more epochs. *Network* and *last layer*
are the closed form with the known noise and a learned addition to it. *RBF* has the known noise, too. The two surveys
of Kenya cover the same land. Kenya and the Gambia share only their scaled outlines, so there is little to transfer.
"""
    for pair, group in figures["malaria"].items():
        lines = [[way, *(span(interval, 3) for interval in some)] for way, some in group["ways"].items()]
        against = [
            f"{way} {signed(some[-1], 3)}"
            for way, some in group["network less"].items()
            if way in ("last layer, retrained", "RBF, own", "mean of the given")
        ]
        text += f"""
### {pair[0].upper()}{pair[1:]}

{group["splits"]} splits, each with a separate source network.

{table(["way", *(f"{count} places" for count in GIVEN)], lines)}

Error of `network` minus that of others at {GIVEN[-1]} places: {"; ".join(against)}.
"""
    return text


def plain_words(figures: Mapping[str, Any]) -> str:
    """Where it wins and loses, in a few lines with numbers."""
    lines = []
    for kind, group in figures["sinusoids"].items():
        ways, less = group["ways"], group["less"]
        mine, pooled, rbf = ways[MINE], ways["network, pooled"], ways["RBF, blended"]
        lines.append(
            f"- {kind.capitalize()} sinusoids. Coverage of the 90 % interval is {span(mine['coverage'])} with a "
            f"distribution of hyper-parameters learned from {POOL} tasks, {span(pooled['coverage'])} with one noise "
            f"and scale for all; NLL {span(mine['nll'])} against {span(pooled['nll'])}. An RBF kernel with the same "
            f"hierarchy: error {span(rbf['rmse'])} against the network's {span(mine['rmse'])}, NLL {span(rbf['nll'])}."
        )
        if BETTER in ways:
            gain, to_rbf = less[BETTER][MINE], less[BETTER]["RBF, blended"]
            lines.append(
                f"- {kind.capitalize()}, source weights meta-learned from 100 tasks: NLL changes by "
                f"{signed(gain['nll'])}, error by {signed(gain['rmse'])}; against RBF, blended: NLL "
                f"{signed(to_rbf['nll'])}, error {signed(to_rbf['rmse'])}."
            )
    if "rain" in figures:
        ways = figures["rain"]["ways"]
        lines.append(
            f"- Rain: coverage {span(ways[MINE]['coverage'])}, NLL {span(ways[MINE]['nll'])}; RBF fitted to each "
            f"station {span(ways['RBF, own']['coverage'])} and {span(ways['RBF, own']['nll'])}; a Bayesian last layer "
            f"{span(ways['last layer, own']['coverage'])} and {span(ways['last layer, own']['nll'])}."
        )
    for pair, group in figures["malaria"].items():
        ways = group["ways"]
        first, last = (ways["network"][index]["mean"] for index in (0, -1))
        lines.append(
            f"- Malaria, {pair}: from {GIVEN[0]} to {GIVEN[-1]} places the network's error goes from {first:.3f} to "
            f"{last:.3f}, blind {ways['blind'][-1]['mean']:.3f}, the retrained last layer "
            f"{ways['last layer, retrained'][-1]['mean']:.3f}, RBF {ways['RBF, own'][-1]['mean']:.3f}."
        )
    return "\n".join(lines)


POOL = 20


def page(figures: Mapping[str, Any]) -> str:
    """The whole page as Markdown."""
    spent = ", ".join(f"{group} {value / 60:.0f}" for group, value in figures["seconds"].items())
    return f"""<!-- written by benchmarks/transfer_regression.py -->
# Values without training

Made by `python benchmarks/transfer_regression.py`; one thread; minutes of process time: {spent}. In brackets 95 %
intervals. *Network* is the linearized source network with all weights free; *pooled* has one noise and scale for all
tasks (`family(...).adapted`), *blended* is a weighted mixture of several, by the other tasks and the task's own points
(`family(...).blended`), *own* learns them from the task alone, *fixed* is the paper's scale of 1 with a noise of 0.01.

{plain_words(figures)}

![Negative log likelihood and coverage on sinusoids; errors on malaria by places given](transfer-regression.svg)

## Sinusoids

A network 1-40-40-1 (tanh) is trained on the ten points of one curve as in the paper's appendix F; hyper-parameters are
learned from {POOL} other curves of ten points. 100 further curves are tested, with ten points given and 100 predicted.
Error is the mean over tasks of the root mean square error. Intervals are by a bootstrap over source networks and over
their tasks. RBF uses the same ten points, and *pooled* and *blended* the same {POOL} curves; ridge regression is on the
input itself. The variance of the last layer by gradient descent is that of its residuals. *Meta-learned* source weights
were trained on 100 more curves. The hierarchy behind *blended* and the optimisation of source weights were developed on
curves of other seeds than those tested.

Two details were changed after some of these figures had been seen once. Constants are integrated out instead of fitted;
this was decided on the other curves. The prior of the scale has the weight of one task; rain at Livermore required it.

{"".join(sinusoids(figures, kind) for kind in figures["sinusoids"])}
Amplitudes range from 0.1 to 5, so one noise and scale are wrong for most curves: intervals of small curves are far too
wide, and if a source's features cannot follow the fastest curves, all of their variation is explained as noise. With a
scale for every task and a distribution over the noise, the likelihood is better for both kinds of curves. Coverage
varies less between sources. On narrow curves it is still somewhat below 90 %, because the curves are not draws from the
network's Gaussian process.

{rain(figures) if "rain" in figures else ""}
{malaria(figures)}"""


def plot(figures: Mapping[str, Any], file: Path) -> None:
    """NLL and coverage of all ways on both kinds of sinusoids, and the errors on malaria."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearkin", "font.size": 8.5})
    figure, panels = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    ways = [
        way
        for way in next(iter(figures["sinusoids"].values()))["ways"]
        if way not in ("network, fixed", "last layer, SGD")
    ][::-1]
    for panel, measure, label in zip(
        panels[0], ("nll", "coverage"), ("negative log likelihood", "coverage of the 90 % interval"), strict=True
    ):
        for (_, group), offset, mark in zip(figures["sinusoids"].items(), (0.15, -0.15), "oD", strict=True):
            for index, way in enumerate(ways):
                if way not in group["ways"]:
                    continue
                value = group["ways"][way][measure]
                colour = META if "meta" in way else OURS if way.startswith("network") else RIVAL
                panel.plot([value["low"], value["high"]], [index + offset] * 2, color=colour, linewidth=1.4)
                panel.plot(value["mean"], index + offset, mark, color=colour, markersize=4.5)
        panel.set_yticks(range(len(ways)), ways if measure == "nll" else [""] * len(ways))
        panel.set_xlabel(label)
    for kind, mark in zip(figures["sinusoids"], "oD", strict=True):
        panels[0, 0].plot([], [], mark, color="black", label=kind, markersize=4.5)
    panels[0, 0].legend(frameon=False, loc="lower right")
    panels[0, 0].set_xlim(-1.2, 3.4)  # one interval goes on beyond
    panels[0, 1].set_xticks((0.8, 0.85, 0.9, 0.95))
    panels[0, 1].axvspan(0.85, 0.95, color=BAND, zorder=0)
    for panel, pair in zip(panels[1], list(figures["malaria"])[:2], strict=True):
        for way, (colour, style) in STYLES.items():
            some = figures["malaria"][pair]["ways"][way]
            panel.plot(GIVEN, [interval["mean"] for interval in some], style, color=colour, label=way, markersize=4)
            if way == "network":
                panel.fill_between(
                    GIVEN,
                    [interval["low"] for interval in some],
                    [interval["high"] for interval in some],
                    color=colour,
                    alpha=0.15,
                    lw=0,
                )
        panel.set(title=f"malaria, {pair}", xlabel="places given", ylabel="error on the others, share of people")
        panel.set_xticks(GIVEN)
    figure.legend(*panels[1, 1].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=6)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def write(figures: Mapping[str, Any], file: Path) -> None:
    """Page and picture."""
    file.write_text(page(figures).rstrip() + "\n")
    plot(figures, file.with_suffix(".svg"))
