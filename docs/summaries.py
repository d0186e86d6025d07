"""Top of every figures page: claim, result, interval, and how to run it again, from the figures in `benchmarks/*.json`.

    python docs/summaries.py

Run it after a benchmark, which writes its page without this part. The table of all pages in `figures/index.md` is
written too. Tests compare the pages with the figures.
"""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "figures"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
REQUIRED = 0.95  # share of runs in which solve must be within noise of the best rival
BLOCK = re.compile(r"<!-- summary -->.*?<!-- end of summary -->\n\n", re.DOTALL)


@dataclass(frozen=True)
class Summary:
    """What a page shows.

    Args:
        claim: what was tested, as a statement.
        result: whether it holds, with the main numbers.
        interval: how sure the numbers are.
        again: the command, and what it needs.
    """

    claim: str
    result: str
    interval: str
    again: str

    def markdown(self) -> str:
        """Four paragraphs between marks."""
        lines = (
            ("Claim", self.claim),
            ("Result", self.result),
            ("Interval", self.interval),
            ("Run it again", self.again),
        )
        text = "\n\n".join(f"**{title}.** {line}" for title, line in lines)
        return f"<!-- summary -->\n{text}\n<!-- end of summary -->\n\n"


def span(value: dict[str, float], digits: int = 2) -> str:
    """A mean with its interval."""
    return f"{value['mean']:.{digits}f} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"


def fisher(figures: dict[str, Any]) -> Summary:
    """Fisher diagonals, products and kernels."""
    ours = [rows["nearkin"]["time"] for rows in figures["diagonal"].values()]
    peers = [
        min(row["time"] for name, row in rows.items() if not name.startswith("nearkin") and "time" in row
            and row.get("error_float64", 0) < 1e-6)
        for rows in figures["diagonal"].values()
    ]  # fmt: skip
    return Summary(
        "An exact diagonal of the Fisher information costs little more than one forward and backward pass, less than "
        "with "
        "any other library.",
        f"Holds on four networks: {min(ours):.2f} to {max(ours):.2f} passes; the fastest correct alternative takes "
        f"{min(peers):.2f} to {max(peers):.2f}.",
        "None. Each number is a median of seven rounds in which all libraries take turns.",
        "`python benchmarks/fisher.py`, after `make bench` has installed the other libraries.",
    )


def prediction(figures: dict[str, Any]) -> Summary:
    """Measures against fine-tuning."""
    kin, logme, frechet = (figures["measures"][name]["area"]["all"] for name in ("kin", "logme", "frechet, padded"))
    final, speed = (figures["questions"]["one network"][name] for name in ("final", "speed"))
    held = {name: row["held out"]["spearman"] for name, row in final["measures"].items()}
    fast = {name: row["held out"]["spearman"] for name, row in speed["measures"].items()}
    gain = final["combination less measure, held out"]["logme"]
    ours, best = final["combination"]["held out"]["spearman"], max(held, key=lambda name: held[name]["mean"])
    fold, less = final["instead"]["3 folds, error"], final["combination less instead, held out"]["3 folds, error"]
    return Summary(
        "The measures of the question `final` predict which source has the lowest error after fine-tuning, and "
        "`short-finetune` (question `speed`) whose loss falls fastest, better than published scores.",
        f"Holds for speed: Spearman correlation {kin['mean']:.2f}, LogME {logme['mean']:.2f}, Fréchet distance "
        f"{frechet['mean']:.2f}; on targets of other data sets {fast['short-finetune']['mean']:.2f} against "
        f"{fast['logme']['mean']:.2f} for LogME. For the final error, on targets of other data sets: "
        f"{ours['mean']:.2f} for the chosen measures, {held['logme']['mean']:.2f} for LogME; "
        f"{held[best]['mean']:.2f} for the best single measure (`{best}`), to which no difference is shown; "
        f"{fold['held out']['spearman']['mean']:.2f} for cross-validated fine-tuning itself, at "
        f"{fold['cost'] / final['cost']:.0f} times the cost.",
        f"95 % by a bootstrap over tasks: speed, `short-finetune` {span(kin)}, LogME {span(logme)}, on targets of "
        f"other data sets {span(fast['short-finetune'])} and {span(fast['logme'])}; final error {span(ours)}, LogME "
        f"{span(held['logme'])}, difference {span(gain)}; difference to cross-validated fine-tuning {span(less)}.",
        "`python benchmarks/prediction.py` with MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 in `$NEARKIN_DATA`, and "
        "Debian's fonts that `prediction_new_data.py` names; about two hours.",
    )


def head_start(figures: dict[str, Any]) -> Summary:
    """Starts of a new head."""
    summary = figures["summary"]
    half, ranks = summary["halves"]["confirming"]["error"], summary["correlation"]["error"]["scaled"]

    def difference(part: dict[str, Any], name: str) -> str:
        value = part["differences"][name]
        return f"{value['mean']:+.3f} ({value['low']:+.3f} to {value['high']:+.3f})"

    means = ", ".join(f"{start} {value:.3f}" for start, value in half["means"].items())
    best = min(half["means"], key=lambda start: half["means"][start])
    holds = "Holds in the mean" if best == summary["chosen"] == "scaled" else "Does not hold"
    by_network = "; ".join(
        f"{name.removeprefix('network ')} {difference(part['error'], 'scaled - zero')} against zeros, "
        f"{difference(part['error'], 'scaled - drawn')} against drawn"
        for name, part in summary["groups"].items()
        if name.startswith("network ")
    )
    return Summary(
        "Fine-tuning ends with a lower error if it starts from a drawn head that is divided by the size of the "
        "features (`scaled`) than from a drawn head or from zeros.",
        f"{holds}, not for every network. Error on the pairs that had no part in the choice: {means}. "
        f"`short-finetune` correlates with the error after a scaled start at {ranks['zero']['mean']:.2f} if it starts "
        f"from zeros, and at {ranks['scaled']['mean']:.2f} if it starts from scaled heads.",
        f"95 % by a bootstrap over {half['pairs']} pairs: scaled minus zero {difference(half, 'scaled - zero')}, "
        f"scaled minus drawn {difference(half, 'scaled - drawn')}. By network, over all pairs: {by_network}. "
        "Few pairs and three targets, so the intervals are rough.",
        "`python benchmarks/head_start.py` with MNIST, Fashion-MNIST and CIFAR-10 in `$NEARKIN_DATA`; about 20 minutes "
        "of one core. `--page` writes the page alone.",
    )


def paper_tasks(figures: dict[str, Any]) -> Summary:
    """The paper's experiment."""
    expected = [1, 0, 3, 2]
    columns = [group for key in ("mnist", "cifar", "settings") for group in figures[key].values()]

    def right(form: str) -> str:
        forms = [group[form]["nearest"] for group in columns if form in group]
        return f"{sum(a == b for nearest in forms for a, b in zip(nearest, expected, strict=True))} of {4 * len(forms)}"

    return Summary(
        "With the Fréchet distance, the nearest task of the paper's four tasks is the expected one, for every "
        "network and setting.",
        f"Holds in most columns: the default form `padded/mixed` is right in {right('padded/mixed')}, `model/sorted` "
        f"in "
        f"{right('model/sorted')}.",
        "The tables give the smallest share of single trials that agree, and the smallest margin. Single "
        "trials "
        "often disagree: use the mean of several.",
        "`python benchmarks/paper_tasks.py` with MNIST and CIFAR-10 in `$NEARKIN_DATA`; `--page` writes the page "
        "alone.",
    )


def same_question(figures: dict[str, Any]) -> Summary:
    """One question on several data sets."""
    summary = figures["summary"]
    final = summary["scores"]["reporting"][summary["default"]]
    return Summary(
        "The Fréchet distance recognises the same question on other data.",
        f"Does not hold reliably: the default form is right for {final['right']} of {final['of']} targets on tasks "
        f"that did "
        f"not choose it. Chance gives {summary['chance']['reporting']:.1f}.",
        f"Right in {final['right trials']:.0%} of single trials; margin {final['margin']:+.3f} with a standard "
        f"deviation "
        f"over trials of {final['std']:.3f}.",
        "`python benchmarks/same_question.py` with MNIST and Fashion-MNIST in `$NEARKIN_DATA`.",
    )


def near(figures: dict[str, Any]) -> Summary:
    """Cost of rankings."""
    seconds = figures["process seconds by number of tasks"]
    parts = [f"`{name}` {seconds[name]['20']:.1f} s" for name in ("hscore", "knn", "evidence")]
    return Summary(
        "Ranking a zoo takes seconds, and `short-finetune`, the measure of the question `speed`, costs a few times as "
        "much as LogME.",
        f"Holds: for twenty tasks `short-finetune` takes {seconds['short-finetune']['20']:.1f} s, LogME "
        f"{seconds['logme']['20']:.1f} s, the Fréchet distance {seconds['frechet']['20']:.1f} s including the "
        f"training of the target's own network. The default of `near`, the question `final`, was not timed; its "
        f"measures were timed one by one: {', '.join(parts)}.",
        "None: one run of each, process time of one thread.",
        "`python benchmarks/near.py`.",
    )


def screening(figures: dict[str, Any]) -> Summary:
    """Search without measuring every pair."""
    searches = {name: figures[name]["searches"]["index and race"] for name in ("scattered", "kindred")}
    related, unrelated = searches["kindred"], searches["scattered"]
    half = {name: 1.96 * (row["recall_at_1"] * (1 - row["recall_at_1"]) / 200) ** 0.5 for name, row in searches.items()}
    speed = figures["speed"][0]
    return Summary(
        "The nearest of many tasks can be found without measuring the distance to all of them.",
        f"Holds with an index and a race: the nearest task is found in {related['recall_at_1']:.1%} of queries if "
        f"tasks are "
        f"related and in {unrelated['recall_at_1']:.1%} if they are not, with {related['share_of_passes']:.1%} of "
        f"the passes. "
        f"A query of {speed['tasks']:,} stored embeddings takes "
        f"{next(iter(speed['exact_milliseconds'].values())):.0f} ms.",
        f"95 %, 200 queries each: ± {100 * half['kindred']:.1f} and ± {100 * half['scattered']:.1f} points. One "
        f"setting of the race was "
        "widened after this draw of tasks had given 94 %.",
        "`python benchmarks/screening.py` with MNIST and Fashion-MNIST in `$NEARKIN_DATA`.",
    )


def tables(figures: dict[str, Any]) -> Summary:
    """Search methods on tables of known architectures."""
    pairs = figures["kin"]
    ratios = [
        ways["kin"]["mean"]["50"] / figures["methods"][pair.split(" to ")[1]]["random"]["mean"]["50"]
        for pair, ways in pairs.items()
    ]
    return Summary(
        "A search that starts from the best cells of another task (`warm-start`, in the table by its former name "
        "`kin`) is never "
        "much worse than random search, and far better if the task is related.",
        f"Holds: over {len(pairs)} ordered pairs of tasks the regret after 50 queries is "
        f"{statistics.fmean(ratios):.2f} of "
        f"random search's on average, {max(ratios):.2f} at worst and {min(ratios):.2f} at best.",
        f"The standard error of each mean is in the tables ({figures['seeds']} seeds; {figures['kin_seeds']} for "
        "pairs). The method was selected from about ten on these same pairs, so its ratio is somewhat too good.",
        "`python benchmarks/tables.py FOLDER`, where FOLDER holds the tables of NAS-Bench-201 and TransNAS-Bench-101.",
    )


def kin_start(figures: dict[str, Any]) -> Summary:
    """Searches from a kin's cells, really trained."""
    near_kin, far_kin = (figures["groups"][f"{name} by Fréchet"] for name in ("near", "far"))

    def share(group: dict[str, Any]) -> str:
        value = group["reached_in_half"]
        return f"{value['value']:.0%} ({value['low']:.0%} to {value['high']:.0%})"

    def gain(group: dict[str, Any]) -> str:
        value = group["gain"]
        return f"{100 * value['value']:+.1f} ({100 * value['low']:+.1f} to {100 * value['high']:+.1f})"

    return Summary(
        "A search that starts from the cells of a related task reaches the result of a search from scratch in half "
        "the time, "
        "more often if the task is near.",
        f"Not shown: it did so in {near_kin['reached_in_half']['value']:.0%} of comparisons with near tasks and in "
        f"{far_kin['reached_in_half']['value']:.0%} with far ones; a second search from scratch did so in "
        f"{figures['groups']['from nothing again']['reached_in_half']['value']:.0%}. "
        f"At the end, searches from kin were {gain(near_kin)} points better (near) and {gain(far_kin)} (far).",
        f"95 % by a bootstrap over targets: near {share(near_kin)}, far {share(far_kin)}. Six tasks are too few to "
        "separate them.",
        "`python benchmarks/kin_start.py` with MNIST, Fashion-MNIST and CIFAR-10 in `$NEARKIN_DATA`.",
    )


def solve(figures: dict[str, Any]) -> Summary:
    """Solve against the models that a user would write."""
    found = figures["summary"]
    within, covered, best, load = found["within_noise"], found["coverage"]["all"], found["best_rival"], found["load"]
    ratio = within["all"]["count"] / within["all"]["of"]
    holds = {True: "holds", False: "does not hold"}
    loaded = f" Under load the answer stays the same, within its interval, in {load['count']} of {load['of']} runs."
    short = found["short"]
    shorter = (
        f" With half of the time it is within noise of the best simple model in {short['count']} of {short['of']}."
    )
    later = _later_runs(figures["later"]["summary"]) if "later" in figures else ""
    return Summary(
        "With equal CPU time `nearkin solve` is, within noise, at least as good as the best of the models that a user "
        f"would write, and its 95 % interval holds. Required: {100 * REQUIRED:.0f} % of runs.",
        f"The first part {holds[ratio >= REQUIRED]}: within noise of the best rival or above it in "
        f"{within['all']['count']} of {within['all']['of']} runs (images {within['images']['count']} of "
        f"{within['images']['of']}, tables {within['tables']['count']} of {within['tables']['of']}), with a mean "
        f"difference of {100 * best['mean']:+.2f} points to the rival that is best on the test samples. The second "
        f"part {holds[covered['with_noise']['high'] >= 0.95]}: the metric of fresh samples lies in the stated interval "
        f"in {covered['plain']['count']} of {covered['plain']['of']} runs, where {covered['expected']:.0%} is expected "
        f"of a correct interval; in {covered['with_noise']['count']} if the noise of the fresh samples is allowed for, "
        "where 95 % is expected." + (loaded if load["of"] else "") + (shorter if short["of"] else "") + later,
        f"95 %: share within noise {within['all']['low']:.0%} to {within['all']['high']:.0%}; mean difference ± "
        f"{100 * best['half']:.2f} points (Student, over data sets). The noise of each run is in the table.",
        f"`python benchmarks/solve.py` with MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and the malaria surveys in "
        f"`$NEARKIN_DATA`; {within['all']['of']} runs, {figures['seconds']:g} s of CPU time for each of seven or eight "
        "methods; then `--seconds 15 --methods solve`, `--load 2` and `--offline`.",
    )


def _later_runs(found: dict[str, Any]) -> str:
    """Runs of solve under load, and short runs, with later seeds."""
    text = (
        " Later pairs of runs without and with load; first those that differ by less than the half width of the "
        "interval, then those whose idle result lies in the interval that the loaded run states for an idle machine:"
    )
    parts = [
        f" {name}: {part['same']['count']} and {part['stated']['count']} of {part['same']['of']}"
        for name, part in found["load"].items()
    ]
    short = found["short"]
    return f"{text}{';'.join(parts)}. Later short runs: {short['count']} of {short['of']}."


def transfer_classes(figures: dict[str, Any]) -> Summary:
    """Closed-form transfer of classes."""
    others = ("linear head", "last layer", "Bayesian last layer", "all weights")
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in figures["cells"]:
        groups.setdefault((cell["pair"], cell["shots"]), []).append(cell["ways"])

    def mean(cells: list[dict[str, Any]], way: str, figure: str = "metric") -> float:
        return statistics.fmean(ways[way][figure] for ways in cells)

    ahead = sum(mean(c, "dirichlet, mean") > max(mean(c, way) for way in others) for c in groups.values())
    calibrated = sum(mean(c, "dirichlet, mean", "ece") <= 0.06 for c in groups.values())
    cells = groups["digits 0–4 → 5–9", 10]
    gains = [100 * (ways["dirichlet, mean"]["metric"] - ways["all weights"]["metric"]) for ways in cells]
    half = 2.776 * statistics.stdev(gains) / len(gains) ** 0.5  # Student, 4 degrees of freedom
    return Summary(
        "With few labels a class, closed-form transfer is more accurate than a linear head, a Bayesian last layer or "
        "fine-tuning, and calibrated.",
        f"Holds in most cases: ahead of every alternative in {ahead} of {len(groups)}, calibration error at most "
        f"0.06 in "
        f"{calibrated}. Digits 0–4 to 5–9 with 10 labels a class: {mean(cells, 'dirichlet, mean'):.3f}, fine-tuning "
        f"{mean(cells, 'all weights'):.3f}, linear head {mean(cells, 'linear head'):.3f}.",
        f"95 % (Student, five seeds) in every table. For the example, the gain over fine-tuning is "
        f"{statistics.fmean(gains):+.1f} ± {half:.1f} points. Small gains in single rows may be chance.",
        "`python benchmarks/transfer_classes.py` with MNIST, Fashion-MNIST and CIFAR-10 in `$NEARKIN_DATA`; `--page` "
        "writes "
        "the page alone.",
    )


def transfer_regression(figures: dict[str, Any]) -> Summary:
    """Closed-form transfer of values."""
    narrow = figures["sinusoids"]["narrow"]["ways"]
    return Summary(
        "Closed-form transfer of values has intervals that hold what they state, and beats a Gaussian process with "
        "an RBF kernel.",
        "The first half holds where tasks share noise and scale: the 90 % interval of narrow sinusoids contains "
        f"{narrow['network, pooled']['coverage']['mean']:.0%} of the points. The second does not: the error is "
        f"{narrow['network, blended']['rmse']['mean']:.2f}, that of RBF {narrow['RBF, blended']['rmse']['mean']:.2f}.",
        f"95 % by a bootstrap over sources and tasks: coverage {span(narrow['network, pooled']['coverage'])}, error "
        f"{span(narrow['network, blended']['rmse'])} against {span(narrow['RBF, blended']['rmse'])}.",
        "`python benchmarks/transfer_regression.py`, about 20 minutes; rain and malaria need their data in "
        "`$NEARKIN_DATA`.",
    )


def transfer_scaling(figures: dict[str, Any]) -> Summary:
    """Evidence of many points."""
    last = figures["cells"]["auto"]["30000"]
    return Summary(
        "The evidence of 30,000 points under a linearized network of 800,000 weights can be computed on a CPU, in "
        "time that "
        "grows linearly.",
        f"Holds: {last['cpu']:.0f} s of one thread and {last['mebibytes']:,} MiB. GPyTorch with the Jacobian as "
        f"features and the "
        "exact form of laplace-torch stop before 1,000 points.",
        "None for times (one run each). Matrix-free results agree with the dense ones as the table of agreement shows.",
        "`python benchmarks/transfer_scaling.py`; `--page` writes the page alone.",
    )


def transfer_speed(figures: dict[str, Any]) -> Summary:
    """Cost of closed-form transfer."""
    ours = figures["ways"]["dirichlet, mean"]
    return Summary(
        f"Closed-form transfer of {figures['points']:,} samples costs less than {figures['epochs']} epochs of "
        f"fine-tuning.",
        f"Holds: {ours['ratio']:.2f} of their time, with {ours['mebibytes']} MiB.",
        f"None: median of {figures['rounds']} rounds.",
        "`python benchmarks/transfer_speed.py`.",
    )


def weight_subsets(figures: dict[str, Any]) -> Summary:
    """Head, norms, LoRA or all weights."""

    def accuracies(method: str, weights: str, shots: int) -> list[float]:
        rows = (row for row in figures["rows"] if (row["weights"], row["shots"]) == (weights, shots))
        return [row[method]["metric"] for row in rows]

    def gain(shots: int, other: str, method: str = "closed form", ours: str = "lora?r=16") -> tuple[float, float]:
        pairs = zip(accuracies("closed form", ours, shots), accuracies(method, other, shots), strict=True)
        gains = [100 * (own - theirs) for own, theirs in pairs]
        return statistics.fmean(gains), 2.776 * statistics.stdev(gains) / len(gains) ** 0.5  # Student, five seeds

    lines, holds = [], True
    for shots in figures["shots"]:
        (head, head_half), (whole, half) = gain(shots, "head"), gain(shots, "all")
        holds &= head > head_half and abs(whole) <= half
        lines.append(
            f"with {shots} labels a class {head:+.1f} ± {head_half:.1f} points to the head, {whole:+.1f} ± {half:.1f} "
            f"to all weights"
        )
    tuned = [gain(shots, "all", "fine-tuning", "all") for shots in figures["shots"]]
    return Summary(
        "In closed form, adapters of rank 16 are more accurate than the head alone, and do not differ from all "
        "weights by more than the interval.",
        f"{'Holds' if holds else 'Does not hold'}: {'; '.join(lines)}. Closed form to fine-tuning, both with all "
        f"weights: " + ", ".join(f"{mean:+.1f} ± {half:.1f}" for mean, half in tuned) + " points.",
        f"95 % (Student, {len(figures['seeds'])} seeds, differences on the same labels). One source, one network, "
        f"{figures['rows'][0]['num_test']} test images.",
        "`python benchmarks/weight_subsets.py`; `--page` writes the page alone.",
    )


def model_ranking(figures: dict[str, Any]) -> Summary:
    """Ranking of pretrained image networks."""
    parts = []
    for data, title in (("cifar10", "CIFAR-10"), ("mnist", "MNIST")):
        rows, agreement = figures[data]["rows"], figures[data]["agreement"]
        first = figures[data]["ranking"]["candidates"][0]["name"]
        best = max(rows, key=lambda name: rows[name]["linear"])
        parts.append(
            f"{title}: first is `{first}` ({rows[first]['linear']:.3f} with a linear head), best is `{best}` "
            f"({rows[best]['linear']:.3f}); Spearman correlation {agreement['linear']['rank']['spearman']:.2f}"
        )
    tuned = figures["cifar10"]["agreement"]["tuned"]["rank"]
    return Summary(
        "`rank` puts networks with pretrained weights before their twins with random weights, small networks and raw "
        "pixels, in the order of the accuracy that each then reaches.",
        f"{'; '.join(parts)}. After fine-tuning on CIFAR-10 the correlation is {tuned['spearman']:.2f}, and the first "
        f"choice loses {tuned['regret']:.3f} of accuracy to the best.",
        "None: one draw of samples and one run of fine-tuning.",
        "`python benchmarks/model_ranking.py` with MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 in `$NEARKIN_DATA`; "
        "about an hour.",
    )


def text_models(figures: dict[str, Any]) -> Summary:
    """A pretrained text encoder and words."""
    names = ("solve, frozen MiniLM", "solve, fine-tuned MiniLM", "TF-IDF and logistic regression")
    parts, holds = [], True
    for count, runs in figures["runs"].items():
        frozen, tuned, words = ([run[name]["accuracy"] for run in runs] for name in names)
        holds &= all(a > b for a, b in zip(frozen, words, strict=True))
        parts.append(
            f"{statistics.fmean(frozen):.3f} against {statistics.fmean(words):.3f} with {count} labels a topic "
            f"({statistics.fmean(tuned):.3f} after fine-tuning for three minutes)"
        )
    one = figures["ranking"]["candidates"][0]["name"]
    return Summary(
        "`rank` puts a pretrained text encoder before its twin with random weights, and `solve` with its features "
        "beats TF-IDF of words with logistic regression.",
        f"{'Holds' if holds and one == 'minilm' else 'Does not hold'}: first is `{one}`; test accuracy "
        f"{', '.join(parts)}.",
        f"Every draw of {len(runs)} had this order." if holds else "Not in every draw.",
        "`python benchmarks/text_models.py` with Debian's fortunes; about half an hour.",
    )


def image_models(figures: dict[str, Any]) -> Summary:
    """A pretrained image network in solve."""
    ours, parts, holds, ranges = "solve, network in the zoo", [], True, []
    titles = {"cifar10": "CIFAR-10", "fashion": "Fashion-MNIST"}
    for data, runs in figures["runs"].items():
        scores = {way: [run[way]["accuracy"] for run in runs] for way in runs[0]}
        means = {way: statistics.fmean(values) for way, values in scores.items()}
        rival = max((way for way in means if way != ours), key=lambda way: means[way])
        less = [a - b for a, b in zip(scores[ours], scores[rival], strict=True)]
        holds &= statistics.fmean(less) >= -0.02
        others = ", ".join(f"{way} {mean:.3f}" for way, mean in means.items() if way != ours)
        parts.append(f"{titles[data]} {means[ours]:.3f}; {others}")
        ranges.append(f"{titles[data]} {min(less):+.3f} to {max(less):+.3f} ({rival})")
    return Summary(
        "With a pretrained image network in its zoo, `solve` loses at most 2 points to the best of what a user would "
        "do instead, at equal processor time, whether the network suits the data or not.",
        f"{'Holds' if holds else 'Does not hold'}, means of test accuracy: {'. '.join(parts)}.",
        f"Differences to the best rival over {len(runs)} draws: {', '.join(ranges)}.",
        "`python benchmarks/image_models.py` with CIFAR-10 and Fashion-MNIST in `$NEARKIN_DATA`; about 40 minutes.",
    )


def adoption(figures: dict[str, Any]) -> Summary:
    """Cost of adopting and ranking."""
    ten, one = figures["ten"], figures["one"]
    ratio, same = ((ten["seconds"] - 2) / ten[name] for name in ("plain", "same"))
    second = 128  # MiB of the largest network and its inputs, which a second one in memory would add
    holds = ratio <= 1.1 and figures["adopt"] <= 10 and ten["peak"] - one["peak"] < second
    return Summary(
        "`rank` of ten networks takes at most 1.1 plain forward passes of each and 2 s, in the memory of one; `adopt` "
        "of 22.7 million weights takes at most 10 s.",
        f"{'Holds' if holds else 'Does not hold'}: {ratio:.2f} passes in batches of 64, {same:.2f} of passes in "
        f"the form that `rank` uses (smaller batches, channels last); peak memory {ten['peak']:,} MiB with ten "
        f"networks, {one['peak']:,} MiB with the "
        f"largest alone (a second network in memory would add {second} MiB); `adopt` {figures['adopt']:.1f} s.",
        "None: one run; processor time of one thread.",
        "`python benchmarks/adoption.py` with CIFAR-10 in `$NEARKIN_DATA`; about 10 minutes.",
    )


def fuse(figures: dict[str, Any]) -> Summary:
    """FUSE and its control."""
    triples = figures["triples"]
    rights = ", ".join(
        f"{task} {group['FUSE']['right']} against {group['side by side']['right']} of {group['FUSE']['of']}"
        for task, group in triples.items()
    )
    saved = [
        1 - group["side by side"]["seconds_a_round"] / group["FUSE"]["seconds_a_round"] for group in triples.values()
    ]
    return Summary(
        "FUSE finds the best of three cells, and does it better than its control, which trains the cells next to "
        "each other.",
        f"The first half holds, the second does not. Best cell found, FUSE against control: {rights}. The control "
        f"takes "
        f"{min(saved):.0%} to {max(saved):.0%} less time.",
        "Guessing would be as often right with probability "
        + " and ".join(
            f"{group['FUSE']['chance_of_as_many_by_guessing']:.1g} ({task})" for task, group in triples.items()
        )
        + ". FUSE and its control differ by one pick of twenty, which is chance.",
        "`python benchmarks/fuse.py` with MNIST and Fashion-MNIST in `$NEARKIN_DATA`; six minutes.",
    )


def supernet(figures: dict[str, Any]) -> Summary:
    """Speed of the supernet."""
    rows = figures["speed"]
    steps, arch = ([row[key] for row in rows] for key in ("weight_step", "first_order"))
    return Summary(
        "The fused supernet computes the same as the plain form in less time and memory.",
        f"Holds: weight steps take {min(steps):.2f} to {max(steps):.2f} of the plain time, architecture steps "
        f"{min(arch):.2f} to {max(arch):.2f}; outputs differ by at most "
        f"{max(row['difference_of_outputs'] for row in rows):.0e}.",
        "None: both forms took turns in one run, beside other work.",
        "`python benchmarks/supernet.py speed`; without `speed`, also the quality of searches on MNIST and "
        "Fashion-MNIST.",
    )


def forgetting(figures: dict[str, Any]) -> Summary:
    """Two models that share layers."""
    values: dict[bool, list[float]] = {True: [], False: []}
    gains: dict[bool, list[float]] = {True: [], False: []}
    for row in figures["rows"]:
        converged, ways = row["level"] == 1, row["ways"]
        without, with_ = (row["a"] - ways[name]["a"][-1] for name in ("none", "plasticity"))
        gains[converged].append(ways["plasticity"]["b"] - ways["none"]["b"])
        if without > 0.05:
            values[converged].append(1 - with_ / without)
    return Summary(
        "Weight plasticity reduces the forgetting of a model by more than 0.8 while another one is trained that shares "
        "layers with it, and the other one is within 0.01 of training without plasticity.",
        f"Holds if A was trained to convergence: A lost more than 0.05 in {len(values[True])} runs, and the lowest "
        f"reduction was {min(values[True]):.2f}; B gained {statistics.median(gains[True]):+.3f} in the median. Plain "
        f"L2 does as well there. Holds in part if A was stopped early: at least {min(values[False]):.2f} in the "
        f"{len(values[False])} runs with a loss, but B lost accuracy ({statistics.median(gains[False]):+.3f} in the "
        "median).",
        "Of five seeds, for every case, in the tables. Settings were chosen on other seeds.",
        "`python benchmarks/forgetting.py`; needs MNIST.",
    )


def data_parallel(figures: dict[str, Any]) -> Summary:
    """One training in two processes."""
    seconds, loads = figures["seconds"], figures["loads"]
    return Summary(
        "Two processes do the steps of one training faster than one process, with the same losses up to rounding.",
        f"{figures['steps']} steps with batches of {figures['batch']} take {seconds['1']:.1f} s in one process and "
        f"{seconds['2']:.1f} s in two, {figures['speedup']:.2f} times as fast; their losses differ by "
        f"{figures['difference']['20']:.0e} at step 20 and {figures['difference'][str(figures['steps'])]:.0e} at the "
        f"end (float32).",
        f"None. Medians of {figures['rounds']} rounds on a machine with {figures['cores']} cores, with a load of "
        f"{max(loads):.1f} at most before a round; another benchmark ran beside a part of it.",
        "`python benchmarks/data_parallel.py`",
    )


def plasticity_speed(figures: dict[str, Any]) -> Summary:
    """Time and memory of the pull."""
    rows = figures["networks"]
    met = [name for name, row in rows.items() if row["ratio"] <= 1.05]
    missed = [f"{name}: {row['ratio'] - 1:.0%}" for name, row in rows.items() if name not in met]
    most = max(4e-6 * row["weights"] * (row["copies"] - 2) for row in rows.values())
    return Summary(
        "Weight plasticity adds at most 5 % to a training step, and one copy of the shared weights plus one of the "
        "Fisher information to its memory.",
        f"Holds for {len(met)} of {len(rows)} cases ({'; '.join(met)}). Does not hold if a step has little work for "
        f"each weight ({'; '.join(missed) or 'none here'}). Memory: two copies and {most:.1f} MB of "
        "working memory at most, which is a third copy for networks of up to a million weights.",
        f"None. Each number is a median of {figures['rounds']} rounds, beside other work.",
        "`python benchmarks/plasticity_speed.py`",
    )


def complexity(figures: dict[str, Any]) -> Summary:
    """Complexity of digits, and what it says about training time."""
    labels, noise, kinds = figures["labels"], figures["noise"], figures["kinds"]
    ranks = [value for value in labels["spearman"] if value is not None]
    return Summary(
        "Complexity rises with the share of random labels and orders the steps of training; the time against the noise "
        "D follows Kramers' law.",
        f"The first part holds in the main: complexity rises in {sum(labels['rising'])} of {len(labels['rising'])} "
        f"seeds, by a factor of {min(labels['ratio']):.1f} to {max(labels['ratio']):.1f}; rank correlation with steps "
        f"{min(ranks):.2f} to {max(ranks):.2f}, because steps hardly rise above 60 % random labels. "
        f"The second does not: steps and D have a rank correlation of "
        f"{min(noise['spearman']):.2f} to {max(noise['spearman']):.2f}, Kramers' law needs a negative one. The static "
        f"distance with Kronecker factors has a rank correlation of {kinds['spearman']['kronecker']:.3f} with the "
        f"exact one. A LeNet on 1,000 digits takes {figures['time']['lanczos']['seconds']:.0f} s with Lanczos.",
        f"The range over {len(labels['rising'])} seeds.",
        "`python benchmarks/complexity.py`, then `python benchmarks/complexity_page.py`",
    )


def forecast(figures: dict[str, Any]) -> Summary:
    """Prediction of the steps of fine-tuning."""
    rows = [row for row in figures["goals"] if not row["metric"]]
    shares = [row["errors"]["forecast"] / row["errors"]["mean of the zoo"] for row in rows]
    half = sum(share <= 0.5 for share in shares)
    parts = []
    for size in (5, 10, 20):
        own = [row for row in figures["coverage"] if row["size"] == size and not row["metric"]]
        parts.append(f"{sum(row['runs'] * row['inside'] for row in own) / sum(row['runs'] for row in own):.0%}")
    areas = [area for row in rows for area in row["auroc"]["forecast"] if area is not None]
    enough = sum(area >= 0.9 for area in areas)
    speed = " and ".join(f"{row['ratio']:.1f} ({name})" for name, row in figures["speed"].items())
    return Summary(
        "The steps of fine-tuning to a training loss are predicted with at most half of the error of the zoo's mean; "
        "80 % intervals hold 75 to 85 % of the runs; the area under the ROC curve of “reached within a budget” is at "
        "least 0.9; a forecast takes at most 1.5 times the measurement of `near`.",
        f"The error is {min(shares):.2f} to {max(shares):.2f} of that of the mean, at most half in {half} of "
        f"{len(rows)} cases. Intervals hold {', '.join(parts)} of the runs for zoos of 5, 10 and 20 tasks. The area is "
        f"{min(areas):.2f} to {max(areas):.2f}, at least 0.9 in {enough} of {len(areas)} cases. A forecast takes "
        f"{speed} times as long as the measurement: the fit of the model has a fixed time.",
        "Three networks and three goals, one seed on which nothing was chosen; targets were left out.",
        "`python benchmarks/forecast.py` with MNIST, Fashion-MNIST and CIFAR-10 in `$NEARKIN_DATA`; about 50 minutes.",
    )


def reachability(figures: dict[str, Any]) -> Summary:
    """Predicted and measured steps of fine-tuning between tasks."""
    budget, results, seeds = figures["budget"], [], []
    for goal, part in figures["summary"].items():
        row, orders = part["forecasts"]["forecast"], part["correlations"]
        missed, below = row["runs"] - row["reached"], row["unreachable"]
        inside = [one["inside"] / one["runs"] for one in part["by target"].values()]
        results.append(
            f"Goal {goal} of the loss: {row['inside'] / row['runs']:.0%} of {row['runs']} runs are in the 80 % "
            f"interval, by target {min(inside):.0%} to {max(inside):.0%}; rank correlation with the measured steps "
            f"{orders['forecast']['all']:.2f}, of the static distance {orders['static distance']['all']:.2f}, of the "
            f"complexity of the target alone {orders['complexity of the target']['all']:.2f}; {missed} runs did not "
            f"reach the goal (AUROC of the probability {row['auroc']:.2f}), {below['0.1'][0]} of them had a "
            f"probability below 0.1 and {below['0.5'][0]} one below 0.5, as had {below['0.5'][1]} of the others."
        )
        shares = ", ".join(f"{one['inside'] / one['runs']:.0%}" for one in part["by seed"])
        ranks = ", ".join(f"{value:.2f}" for value in orders["forecast"]["by seed"])
        seeds.append(f"goal {goal}: {shares} in the interval, rank correlation {ranks}")
    return Summary(
        f"Before fine-tuning one can tell how many steps it will take, and whether {budget:g} are enough, for data "
        "sets on which no run is known.",
        "The steps: yes in the total, not for every target. Whether the budget is enough: not by the probability "
        "itself. " + " ".join(results),
        f"By seed; {'; '.join(seeds)}.",
        "`python benchmarks/reachability.py` with MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 in `$NEARKIN_DATA`; "
        f"about {figures['seconds'] / 60:.0f} minutes of one core. `--only page` writes the page alone.",
    )


def nao_tables(figures: dict[str, Any]) -> Summary:
    """NAO against evolution at equal queries."""
    off = figures["nao − evolution"]
    lower = [count for count, value in off.items() if value["mean"] < 0]
    sure = [count for count, value in off.items() if abs(value["mean"]) > value["half"]]
    spans = ", ".join(f"{value['mean']:+.2f} ± {value['half']:.2f} after {count}" for count, value in off.items())
    return Summary(
        "NAO finds better cells than evolution at equal numbers of queries.",
        f"{'Does not hold' if not lower else 'Holds in part'}: NAO has the lower mean regret at {len(lower)} of "
        f"{len(off)} numbers of queries; the difference exceeds its interval at {len(sure)}. Regret relative to random "
        "search, NAO minus "
        f"evolution, on tasks that had no part in the choice of options: {spans} queries (above 0, NAO is worse).",
        f"95 %, over tasks; {figures['nao_seeds']} seeds with NAO, {figures['seeds']} with the other methods.",
        "`python benchmarks/nao_tables.py FOLDER`, with the tables as CSV in FOLDER.",
    )


def enas_speed(figures: dict[str, Any]) -> Summary:
    """Steps and epochs of ENAS."""
    cell, text = figures["cells"], figures["recurrent"]
    digits, mnist = (figures["epoch"][name]["process seconds"] for name in ("digits", "mnist?limit=2000"))
    loop = text["loop"] / text["path"]
    return Summary(
        "A step on a sampled path takes at most 1.2 times that of the same cell alone; a recurrent step has at least "
        "0.9 of the speed of a hand-written loop; an epoch of ENAS on 2,000 digits takes less than 60 s.",
        f"Path: {cell['path']:.2f} ({'holds' if cell['path'] <= 1.2 else 'does not hold'}). Recurrent: {loop:.2f} of "
        f"the speed of the loop ({'holds' if loop >= 0.9 else 'does not hold'}). Epoch: {digits:.0f} s of processor "
        f"time on digits, {mnist:.0f} s on 2,000 images of MNIST, with one thread "
        f"({'holds' if max(digits, mnist) < 60 else 'does not hold'}); wall time on an idle machine was not measured.",
        "None. Steps are medians of rounds in which all take turns; epochs were run once, beside other work.",
        "`python benchmarks/enas.py`; the epoch on MNIST needs MNIST.",
    )


def shared_weights(figures: dict[str, Any]) -> Summary:
    """Searches with shared weights, with and without plasticity."""
    largest: dict[bool, dict[str, float]] = {False: {}, True: {}}
    means: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for key, row in figures["runs"].items():
        if row["kind"] == "search" and not row["more"]:
            task, late, on = key.split("/")[0], row["forgetting"][3:], row["plasticity"]
            highest = max(epoch["maximum"] for epoch in late)
            largest[on][task] = max(highest, largest[on].get(task, highest))
            means[on].setdefault(task, []).append(statistics.fmean(epoch["mean"] for epoch in late))
    points = {on: f"{100 * largest[on]['mnist']:.1f}" for on in largest}
    nats = {on: f"{largest[on]['ptb']:.2f}" for on in largest}
    mean = {
        (on, task): scale * statistics.fmean(means[on][task])
        for on in means
        for task, scale in (("mnist", 100), ("ptb", 1))
    }
    return Summary(
        "In searches with shared weights, plasticity (`--plasticity`) reduces the mean forgetting by at least half and "
        "the largest one, and the architecture that is found is better.",
        f"The first part holds where the mean is above 0 without plasticity (four of six cases) and the largest change "
        f"is lower in all six; the second part is not shown. Mean change of the error on MNIST "
        f"{mean[False, 'mnist']:+.2f} points without and {mean[True, 'mnist']:+.2f} with plasticity, "
        f"largest {points[False]} and {points[True]}; "
        f"of the loss on Penn Treebank {mean[False, 'ptb']:+.3f} and {mean[True, 'ptb']:+.3f}, largest {nats[False]} "
        f"and {nats[True]}. Best architectures, trained from scratch, differ by less than the noise of three seeds, "
        f"and so do ranks with shared weights.",
        "95 % over three seeds, in the tables. The strength was chosen on other seeds of the same tasks.",
        "`python benchmarks/shared_weights.py --ptb FOLDER`; needs MNIST and Penn Treebank.",
    )


def interleave(figures: dict[str, Any]) -> Summary:
    """The interleaved search against its baselines."""
    found = figures["summary"]
    results, intervals = [], []
    for section, words, unit in (
        ("classes", "Three classification tasks", "mean test error"),
        ("detection", "Classification and detection", "AP"),
    ):
        if row := found.get(section):
            spans = {role: span(row[f"{role}_mean"], 1) for role in ("reference", "best", "random")}
            best = "" if row["best"] == "interleave" else f", of {row['best']}, the best, {spans['best']}"
            results.append(
                f"{words}: {unit} of interleave {spans['reference']} %{best}, of a random cell {spans['random']}; by "
                f"the mean, interleave is {row['place']}; {row['verdict']}."
            )
            intervals.append(f"{words.lower()}: {row['seeds']} seeds")
    if row := found.get("ablations"):
        results.append(f"Ablations: {row['verdict']}.")
        intervals.append(f"ablations: {row['seeds']} seeds")
    for kind, gain in found.get("agreement", {}).items():
        results.append(
            f"Agreement of student and teacher with transfer ({kind}): {gain['mean']:+.3f} ± {gain['half']:.3f}, "
            f"{gain['smallest']:+.3f} at least (goal: 0.08); {gain['below']:.1%} of the transfers have 10 % active "
            "pairs or fewer (goal: none)."
        )
    results += [f"{name}: {value:.3g} (goal: at most {limit:g})." for name, value, limit in found.get("speed", [])]
    seconds = sum(found[section]["seconds"] for section in ("classes", "detection", "ablations") if section in found)
    return Summary(
        "Interleaved search finds a better architecture for several tasks than its baselines at equal numbers of "
        "steps, and the transfer between encoders works and is cheap.",
        " ".join(results),
        f"95 % over seeds; {'; '.join(intervals) or 'none yet'}. Differences are tested by paired t-tests with Holm's "
        "correction.",
        "`python benchmarks/interleave.py` with MNIST, Fashion-MNIST and CIFAR-10 in `$NEARKIN_DATA`; "
        f"{f'about {seconds / 3600:.1f}' if seconds else 'several'} hours of one core. It continues after a stop.",
    )


def hypernet(figures: dict[str, Any]) -> Summary:
    """Memory and quality of a hypernetwork in the interleaved search."""

    def ratios(name: str, how: str) -> str:
        rows = [row for row in figures["memory"] if f"{name}, {how}" in row]
        return " and ".join(f"{row[f'{name}, {how}'] / row['single']:.2f}" for row in rows)

    largest = max(row[name] / row["single"] for row in figures["memory"] for name in row if name.startswith("hyper"))
    means = {name: statistics.mean(values) for name, values in figures["quality"]["accuracy"].items()}
    channels = " and ".join(str(row["channels"]) for row in figures["memory"])
    return Summary(
        "In the interleaved search of three tasks in two rounds, a hypernetwork keeps the peak memory within 1.3 times "
        "that of PC-DARTS on one task, and its supernets are as accurate as those with stored weights.",
        f"Memory: {'holds' if largest <= 1.3 else 'does not hold'}. Without transfer {ratios('hypernetwork', 'alone')} "
        f"with {channels} channels; weights stored for each task and round: "
        f"{ratios('stored for every round', 'alone')} in the first pass, a lower bound. With transfer "
        f"{ratios('hypernetwork', 'matched')}, as it embeds 64 images at a time; stored weights, which "
        f"embed 400 at once: {ratios('stored', 'matched')}. "
        f"Accuracy after equal steps: stored {means['stored']:.3f}, hypernetwork {means['hypernetwork']:.3f}, as "
        f"printed {means['printed hypernetwork']:.3f}.",
        f"Memory: none, it is repeatable. Accuracy: {figures['seeds']} seeds; the intervals of stored "
        "weights and hypernetwork overlap.",
        "`python benchmarks/hypernet.py`",
    )


def store(figures: dict[str, Any]) -> Summary:
    """Concurrent inserts and lists of the two databases."""
    inserts, lists = figures["inserts_per_second"], figures["listing_seconds"]
    ratios = {name: values["8"] / values["1"] for name, values in inserts.items()}
    rates = ", ".join(
        f"{name} {values['1']:.0f} with one process and {values['8']:.0f} with eight ({ratios[name]:.2f})"
        for name, values in inserts.items()
    )
    slowest = max(values["page"] for values in lists.values())
    return Summary(
        "Eight processes that add tasks to one zoo insert at least as many tasks per second as one alone, and a page "
        "of a list of 100,000 tasks is read in less than 200 ms.",
        f"{'Holds' if min(ratios.values()) >= 1 and slowest < 0.2 else 'Does not hold'}. Tasks per second: {rates}; "
        f"slowest page: {1000 * slowest:.0f} ms.",
        f"None. Medians of {figures['rounds']} rounds in which the kinds of runs take turns, on a machine of two cores "
        "without other work.",
        "`python benchmarks/store.py`; it needs the programs of PostgreSQL (Debian: `apt-get install postgresql`).",
    )


def runner(figures: dict[str, Any]) -> Summary:
    """Overhead of jobs, Ray against processes, speed of two workers."""
    overhead, jobs, matrix = figures["overhead"], figures["second_jobs"], figures["matrix"]
    cost = overhead["many_milliseconds"]
    goals = {
        f"a job costs {cost:.1f} ms among many and {overhead['single_milliseconds']:.1f} ms alone": cost <= 10,
        f"Ray takes {jobs['ray_over_local']:.2f} times as long as processes": jobs["ray_over_local"] <= 1.3,
        f"two workers are {matrix['speedup_started']:.2f} times as fast as one": matrix["speedup_started"] >= 1.7,
        f"with the start of their processes {matrix['speedup']:.2f} times": matrix["speedup"] >= 1.7,
    }
    lines = [f"{text} ({'holds' if met else 'does not hold'})" for text, met in goals.items()]
    return Summary(
        "A job costs at most 10 ms, Ray on one machine takes at most 1.3 times as long as processes for jobs of a "
        "second, and two workers measure the distances of 12 tasks at least 1.7 times as fast as one process.",
        f"{'; '.join(lines)}.",
        f"None. Jobs: one run; matrix: medians of {matrix['rounds']} rounds.",
        "`python benchmarks/runner.py`",
    )


SUMMARIES: dict[str, tuple[str, Callable[[dict[str, Any]], Summary]]] = {
    "fisher-benchmark": ("fisher", fisher),
    "prediction-benchmark": ("prediction", prediction),
    "head-start": ("head_start", head_start),
    "paper-tasks": ("paper_tasks", paper_tasks),
    "same-question": ("same_question", same_question),
    "near-benchmark": ("near", near),
    "screening-benchmark": ("screening", screening),
    "complexity": ("complexity", complexity),
    "forecast-benchmark": ("forecast", forecast),
    "reachability": ("reachability", reachability),
    "tables-benchmark": ("tables", tables),
    "kin-start": ("kin_start", kin_start),
    "solve-benchmark": ("solve", solve),
    "transfer-classes": ("transfer_classes", transfer_classes),
    "transfer-regression": ("transfer_regression", transfer_regression),
    "transfer-scaling": ("transfer_scaling", transfer_scaling),
    "transfer-speed": ("transfer_speed", transfer_speed),
    "weight-subsets": ("weight_subsets", weight_subsets),
    "model-ranking": ("model_ranking", model_ranking),
    "image-models": ("image_models", image_models),
    "text-models": ("text_models", text_models),
    "adoption": ("adoption", adoption),
    "fuse-benchmark": ("fuse", fuse),
    "supernet-benchmark": ("supernet", supernet),
    "shared-weights": ("shared_weights", shared_weights),
    "forgetting": ("forgetting", forgetting),
    "plasticity-speed": ("plasticity_speed", plasticity_speed),
    "data-parallel": ("data_parallel", data_parallel),
    "enas-speed": ("enas", enas_speed),
    "nao-tables": ("nao_tables", nao_tables),
    "interleave": ("interleave", interleave),
    "hypernet": ("hypernet", hypernet),
    "store": ("store", store),
    "runner": ("runner", runner),
}


def summary_of(page: str) -> Summary:
    """The summary of a page, from its figures."""
    file, function = SUMMARIES[page]
    return function(json.loads((BENCHMARKS / f"{file}.json").read_text()))


def with_summary(text: str, summary: Summary) -> str:
    """A page with the summary below its title."""
    text = BLOCK.sub("", text)
    return re.sub(r"(^# .*\n\n)", lambda title: title[1] + summary.markdown(), text, count=1, flags=re.MULTILINE)


def index() -> str:
    """The page that lists all others."""
    rows = []
    for page in SUMMARIES:
        title = re.search(r"^# (.*)$", (FIGURES / f"{page}.md").read_text(), re.MULTILINE)
        summary = summary_of(page)
        rows.append(f"| [{title[1] if title else page}]({page}.md) | {summary.claim} | {summary.result} |\n")
    return (
        "# Figures\n\nEvery page states at its top: the claim, the result, the interval, and the command that "
        "repeats it. "
        "All figures are from one thread of a CPU. The numbers are stored in `benchmarks/*.json`.\n\n"
        "| page | claim | result |\n| --- | --- | --- |\n" + "".join(rows)
    )


if __name__ == "__main__":
    for name in SUMMARIES:
        file = FIGURES / f"{name}.md"
        file.write_text(with_summary(file.read_text(), summary_of(name)))
    (FIGURES / "index.md").write_text(index())
