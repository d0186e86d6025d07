"""Fisher information compared with other libraries: diagonals, products, tangent kernels, in units of a plain pass.

    python benchmarks/fisher.py [--only diagonal,expected,products,tangent,large] [--rounds 7]

A ratio is process time ÷ that of a plain forward+backward of the mean loss on the same samples: one thread, one
process, candidates in turn, the plain pass before and after each, median of the rounds. Memory is the most bytes of
tensors at one time, including set-up, also ÷ plain (`measure.peak_bytes`). Errors are relative to the norm of a float64
reference; a result with a large error in any parameter is called wrong. Figures go to `benchmarks/fisher.json`, the
table to `docs/figures/fisher-benchmark.md`, the plot to `docs/images/fisher-cost.svg`. Libraries that are not
installed, or refuse a network, are named with the reason; `benchmarks/peers.py` has all of them.
"""

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import nearkin as nk
import peers
from measure import apart, peak_bytes, process_seconds, ratios
from peers import BATCH, Call, Peer, flat, plain
from results import keep, table

DOCS = Path(__file__).parents[1] / "docs"
SAMPLES = {"MLP 784-512-256-10": 1280, "LeNet": 1280, "CNN 32-64-128": 512, "ResNet-18, 16 channels": 256}
PRODUCT_SAMPLES = 256
FULL_WIDTH = ("vgg16", "resnet18", "densenet121")
WRONG_RESULT = 0.02  # an error of some parameter that neither float32 nor a finite difference explains
OURS, PEER, WRONG = "#0072B2", "#999999", "#D55E00"  # Okabe and Ito: colour-blind readers can distinguish them
Row: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, dict[str, Any]]


class SmallCNN(nn.Sequential):
    """Three 3x3 convolutions of 32, 64 and 128 channels with a pool behind each, then one linear layer."""

    def __init__(self) -> None:
        blocks = [
            layer
            for before, after in ((3, 32), (32, 64), (64, 128))
            for layer in (nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-512-256-10": (lambda: nk.build("mlp?hidden=512-256", (784,), 10, 0), (784,)),
    "LeNet": (lambda: nk.build("lenet", (1, 28, 28), 10, 0), (1, 28, 28)),
    "CNN 32-64-128": (SmallCNN, (3, 32, 32)),
    "ResNet-18, 16 channels": (lambda: nk.build("resnet18?width=0.25", (3, 32, 32), 10, 0), (3, 32, 32)),
}
MLP, LENET, CNN, RESNET = NETS


def ready(build: Callable[[], nn.Module], shape: tuple[int, ...], samples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network in evaluation mode with batch statistics of the inputs, and samples from a seed."""
    torch.manual_seed(0)
    model, x, y = build(), torch.randn(samples, *shape), torch.randint(10, (samples,))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(x[:BATCH])
    return model.eval(), x, y


def samples_of(net: str) -> int:
    """Number of batches: ten for fast networks, so that the set-up time has its usual share; fewer for slow ones."""
    return SAMPLES[net]


# Ours, in the form of a peer


def ours_diagonal(labels: str) -> Peer:
    def prepare(model: nn.Module, x: Tensor, y: Tensor) -> Call:
        from nearkin.fisher.diagonals import diagonal

        return lambda: list(diagonal(model, x, y, labels=labels, batch_size=BATCH).values.values())

    return prepare


def ours_product(**options: Any) -> Peer:
    """A product with an operator that is reused between products."""

    def prepare(model: nn.Module, x: Tensor, y: Tensor) -> Call:
        from nearkin.fisher.products import FisherProduct

        operator, v = FisherProduct(model, x, **options), named_direction(model)
        return lambda: list(operator(v).values())

    return prepare


def ours_single_product(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nearkin.fisher.products import fisher_vector_product

    v = named_direction(model)
    return lambda: list(fisher_vector_product(model, x, v).values())


def named_direction(model: nn.Module) -> dict[str, Tensor]:
    return dict(zip((name for name, _ in model.named_parameters()), peers.direction(model), strict=True))


def ours_gram(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nearkin.fisher.tangent import tangent_kernel

    return lambda: tangent_kernel(model, x, outputs=0)


# Measuring a set of candidates on a network


def prepared(candidates: Mapping[str, Peer], *case: Any) -> tuple[dict[str, Call], dict[str, Row]]:
    """The calls of the libraries that can run the problem, run once, and the reasons of those that cannot."""
    calls, refused = {}, {}
    for name, peer in candidates.items():
        try:
            calls[name] = peer(*copy.deepcopy(case))
            calls[name]()
        except Exception as reason:
            calls.pop(name, None)
            refused[name] = {"refused": one_line(reason)}
    return calls, refused


def one_line(reason: Exception) -> str:
    return f"{type(reason).__name__}: {' '.join(str(reason).split())[:160]}"


def errors(peer: Peer, truth: Tensor, model: nn.Module, x: Tensor, y: Tensor) -> Row:
    """Error relative to the norm of the float64 reference, over all parameters and for the worst one.

    In float64 it tells whether a formula is right. In float32 it also has what rounding does to near-ties of max pools
    and ReLUs, which autograd is not spared either.
    """
    sizes = [weight.numel() for weight in model.parameters()]
    sizes = sizes if sum(sizes) == len(truth) else [len(truth)]
    row: Row = {}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        try:
            off = flat(peer(copy.deepcopy(model).to(dtype), x.to(dtype), y)()).detach() - truth
        except Exception as reason:  # some peers know no float64
            row[f"error_{name}"] = one_line(reason)
            continue
        parts = zip(off.split(sizes), truth.split(sizes), strict=True)
        worst = max(float(figures.norm() / true.norm().clamp_min(1e-6 * truth.norm())) for figures, true in parts)
        row |= {f"error_{name}": float(f"{off.norm() / truth.norm():.1e}"), f"worst_{name}": float(f"{worst:.1e}")}
    return row


def is_wrong(row: Row) -> bool:
    """Whether the error of a parameter is larger than rounding explains."""
    return row.get("worst_float64", row.get("worst_float32", 0.0)) > WRONG_RESULT


def measured(
    candidates: Mapping[str, Peer],
    case: tuple[nn.Module, Tensor, Tensor],
    rounds: int,
    *,
    size: int = BATCH,
    oracle: Peer | None = None,
    few: int = 64,
) -> dict[str, Row]:
    """Time and memory ÷ those of a plain pass in batches of `size`, and errors on `few` samples, of every candidate."""
    model, x, y = case
    reference = plain(*copy.deepcopy(case), size=size)
    calls, refused = prepared(candidates, *case)
    times, base = ratios(reference, calls, rounds), peak_bytes(reference)
    able = list(calls)
    calls.clear()  # with what they hold
    rows = {name: refused.get(name, {"time": times.get(name)}) for name in candidates}
    for name in able:
        again = copy.deepcopy(model)
        rows[name]["memory"] = round(peak_bytes(lambda: candidates[name](again, x, y)()) / base, 2)  # noqa: B023
    if oracle is not None:
        truth = flat(oracle(copy.deepcopy(model).double(), x[:few].double(), y[:few])()).detach()
        for name in able:
            rows[name] |= errors(candidates[name], truth, model, x[:few], y[:few])
    rows["plain"] = {"seconds": times["plain_seconds"], "mebibytes": round(base / 2**20, 1)}
    print("\n".join(f"  {name}: {row}" for name, row in rows.items()), flush=True)
    return rows


# The parts of the benchmark: {column of the table: {row: figures}}


def diagonals(rounds: int) -> Part:
    """The empirical diagonal on every network; ours also over ten batches in a new process."""
    results = {}
    for net, (build, shape) in NETS.items():
        print(f"diagonal, {net}")
        case = ready(build, shape, samples_of(net))
        candidates = {"nearkin": ours_diagonal("observed"), **peers.DIAGONALS}
        rows = measured(candidates, case, rounds, oracle=peers.loop_diagonal)
        cold = {"time": statistics.median(apart(cold_ratio, net)["ratio"] for _ in range(min(rounds, 3)))}
        print(f"  cold: {cold}", flush=True)
        results[net] = {"nearkin": rows.pop("nearkin"), "nearkin, cold, ten batches": cold, **rows}
    return results


def cold_ratio(net: str) -> Row:
    """Time of the first diagonal of a process over ten batches, relative to plain passes over the same batches."""
    case = ready(*NETS[net], 10 * BATCH)
    reference, ours = plain(*copy.deepcopy(case)), ours_diagonal("observed")(*case)
    plain(*copy.deepcopy(case))()
    before, cold, after = process_seconds(reference), process_seconds(ours), process_seconds(reference)
    return {"ratio": round(2 * cold / (before + after), 3)}


def expectations(rounds: int) -> Part:
    """Diagonals of the model's own Fisher: one sampled label, and the expectation over ten classes."""
    results = {}
    for net in (MLP, LENET, RESNET):
        case = ready(*NETS[net], samples_of(net))
        print(f"one sampled label, {net}")
        sampled = {"nearkin": ours_diagonal("sampled"), **peers.SAMPLED}
        results[f"one label, {net}"] = measured(sampled, case, rounds)
        print(f"ten classes, {net}")
        exact = {"nearkin": ours_diagonal("expected"), **peers.EXPECTED}
        results[f"ten classes, {net}"] = measured(exact, case, min(rounds, 5), oracle=peers.loop_expected, few=16)
    return results


def products(rounds: int) -> Part:
    """Fisher-vector products with all samples in one batch."""
    results = {}
    candidates = {
        "nearkin, graph kept": ours_product(),
        "nearkin, finite difference": ours_product(method="difference"),
        "nearkin, finite difference, two-sided": ours_product(method="difference", sides=2),
        "nearkin, one-off": ours_single_product,
        **peers.PRODUCTS,
    }
    for net in NETS:
        print(f"products, {net}")
        case = ready(*NETS[net], PRODUCT_SAMPLES)
        results[net] = measured(candidates, case, rounds, size=PRODUCT_SAMPLES, oracle=peers.forward_reverse_product)
    return results


def grams(rounds: int) -> Part:
    """Gram matrices of the tangent kernel of one output; memory relative to a plain pass over all samples at once."""
    results = {}
    for net in (MLP, LENET):
        for samples in (256, 1024):
            print(f"tangent kernel, {net}, {samples} samples")
            case = ready(*NETS[net], samples)
            candidates = {"nearkin": ours_gram, **peers.GRAMS}
            results[f"{net}, N = {samples}"] = measured(
                candidates, case, rounds, size=samples, oracle=peers.jacobian_gram, few=128
            )
    return results


def large(rounds: int) -> Part:
    """Large cases that must run on a machine with two cores, each in its own process: wall seconds and resident MiB."""
    works = {
        **{f"diagonal, {spec} at full width, 16 samples": (full_width, spec) for spec in FULL_WIDTH},
        "diagonal, ResNet-18 at full width, batch of 128": (full_width_memory, "resnet18"),
        "tangent kernel, LeNet, N = 10,000": (large_gram, 10_000),
    }
    results = {}
    for name, (work, argument) in works.items():
        print(name)
        try:
            results[name] = apart(work, argument)
        except Exception as reason:
            results[name] = {"refused": one_line(reason)}
        print(f"  {results[name]}", flush=True)
    return results


def full_width(spec: str) -> Row:
    model, x, y = ready(lambda: nk.build(spec, (3, 32, 32), 10, 0), (3, 32, 32), 16)
    values = ours_diagonal("observed")(model, x, y)()
    return {"million weights": round(sum(value.numel() for value in values) / 1e6, 1)}


def full_width_memory(spec: str) -> Row:
    """Memory relative to a plain pass, for a network whose weights take as much memory as its activations."""
    case = ready(lambda: nk.build(spec, (3, 32, 32), 10, 0), (3, 32, 32), BATCH)
    ours, reference = ours_diagonal("observed")(*case), plain(*copy.deepcopy(case))
    ours()
    times = ratios(reference, {"ours": ours}, 1)
    return {"memory ÷ plain": round(peak_bytes(ours) / peak_bytes(reference), 2), "time ÷ plain": times["ours"]}


def large_gram(samples: int) -> Row:
    kernel = ours_gram(*ready(*NETS[LENET], samples))()
    return {"MiB of the kernel": round(kernel.nbytes / 2**20)}


PARTS: dict[str, Callable[[int], Part]] = {
    "diagonal": diagonals,
    "expected": expectations,
    "products": products,
    "tangent": grams,
    "large": large,
}


# What is left of it: a table and a plot

TITLES = {
    "diagonal": "Diagonal of the empirical Fisher: time / memory, ÷ plain",
    "expected": "Diagonal of the model's Fisher: time / memory, ÷ plain",
    "products": "Fisher-vector product: time / memory, ÷ plain",
    "tangent": "Gram matrix of the tangent kernel, one output: time / memory, ÷ plain",
}


def cell(row: Row | None) -> str:
    """Time and memory as text, or the reason why there are none."""
    if not row:
        return "–"
    if "refused" in row:
        return "not installed" if row["refused"].startswith("ModuleNotFoundError") else "refuses"
    text = f"{row['time']:.3g}" + (f" / {row['memory']:.3g}" if "memory" in row else "")
    return text + (", wrong" if is_wrong(row) else "")


def section(title: str, figures: Part) -> str:
    """One section as Markdown: a row for each library, a column for each network, the largest error last."""
    names = dict.fromkeys(name for rows in figures.values() for name in rows if name != "plain")
    lines = []
    for name in names:
        rows = [column.get(name) for column in figures.values()]
        off = [largest(rows, f"error_{kind}") for kind in ("float32", "float64")]
        cells = [cell(row) for row in rows]
        strong = f"**{name}**" if name.startswith("nearkin") else name
        lines.append([strong, *cells, " / ".join(off)])
    lines.append(["plain pass, seconds", *(f"{column['plain']['seconds']:.3g}" for column in figures.values()), "–"])
    reasons = sorted(
        {
            f"- {name}, {net}: `{row['refused']}`"
            for net, rows in figures.items()
            for name, row in rows.items()
            if "refused" in row
        }
    )
    return (
        "\n".join([f"### {title}", "", table(["", *figures, "error, float32 / float64"], lines), "", *reasons]).rstrip()
        + "\n"
    )


def largest(rows: list[Row | None], key: str) -> str:
    values = [row[key] for row in rows if row and isinstance(row.get(key), float)]
    return f"{max(values):.0e}" if values else "–"


def large_section(figures: Part) -> str:
    head = ["", "seconds", "resident MiB", "also"]
    lines = []
    for name, row in figures.items():
        rest = ", ".join(f"{key}: {value}" for key, value in row.items() if key not in ("seconds", "mebibytes"))
        lines.append([name, str(row.get("seconds", "–")), str(row.get("mebibytes", "–")), rest])
    return "\n".join(["### What runs on two cores", "", table(head, lines), ""])


def written(figures: Row) -> str:
    """All parts as one Markdown text."""
    parts = [section(title, figures[name]) for name, title in TITLES.items() if name in figures]
    if "large" in figures:
        parts.append(large_section(figures["large"]))
    head = "<!-- written by benchmarks/fisher.py -->\n# Fisher information compared with other libraries\n\n" + (
        "Time and memory are in units of a plain forward and backward pass over the same samples; errors are "
        "relative to the norm of a float64 reference.\n\n"
    )
    return head + "\n".join(parts)


def draw(figures: Part, file: Path) -> None:
    """Bars of the time of a diagonal, one panel for each network: ours, others, and others with wrong results."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearkin", "font.size": 9})
    figure, panels = plt.subplots(2, 2, figsize=(9, 5.6), layout="constrained")
    for panel, (net, rows) in zip(panels.flat, figures.items(), strict=True):
        timed = {name: row for name, row in rows.items() if "time" in row and name != "nearkin, cold, ten batches"}
        names = sorted(timed, key=lambda name: -timed[name]["time"])
        wrong = [is_wrong(timed[name]) for name in names]
        times = [timed[name]["time"] for name in names]
        colours = [
            OURS if name == "nearkin" else WRONG if bad else PEER for name, bad in zip(names, wrong, strict=True)
        ]
        bars = panel.barh(names, times, color=colours, height=0.7)
        labels = [f"{time:.3g}{', wrong' if bad else ''}" for time, bad in zip(times, wrong, strict=True)]
        panel.bar_label(bars, labels, padding=3)
        panel.set(xscale="log", xlim=(0.5, max(times) * 4), title=net)
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("time of the diagonal ÷ a plain forward and backward pass (line), one thread")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def kept() -> Row:
    """Figures of earlier runs, by part."""
    file = Path(__file__).with_suffix(".json")
    figures = json.loads(file.read_text()) if file.exists() else {}
    return {name: figures[name] for name in PARTS if name in figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma between")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # peers warn of their own deprecated calls
    for name in chosen.only.split(","):
        results = PARTS[name](chosen.rounds)
        keep(__file__, kept() | {name: results})
    figures = kept()
    page = DOCS / "figures" / "fisher-benchmark.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(written(figures))
    if "diagonal" in figures:
        draw(figures["diagonal"], DOCS / "images" / "fisher-cost.svg")
    print(written(figures))


if __name__ == "__main__":
    main()
