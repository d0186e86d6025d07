"""Planted solutions: every figure drawn from a seed, nothing trained."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.ranking import Ranking
from nearkin.nets.evaluate import Scores
from nearkin.nets.history import History
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import Fit
from nearkin.run.stages import StageTime
from nearkin.solver.claims import ClaimCheck
from nearkin.solver.quality import Quality, class_quality, value_quality
from nearkin.solver.relations import Relations, agreements
from nearkin.solver.result import Result
from nearkin.solver.solution import Solution
from nearkin.solver.zoo_value import MeasuredValue, ZooValue
from nearkin.tasks.checks.data_checks import Checks, Finding

CELL = "normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); 3 = skip_connect(0) + conv3(2); out = concat(2, 3)"
OTHER_CELL = "normal(0): 1 = conv5(0); 2 = avg3(1); out = concat(1, 2)"
NAMES = ("zero", "six", "low", "high", "even", "odd", "prime", "round")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "{{ 7 * 7 }}",
    "a & b ' onload='x",
    "漢字 \x00\n ]]> \u202e",
    "very long " + "name-" * 60,
)


def images(count: int, rng: Generator, shape: Sequence[int] = (1, 8, 8)) -> Tensor:
    """Raw bytes `[count, *shape]`."""
    return torch.randint(0, 256, (count, *shape), generator=rng, dtype=torch.uint8)


def classes_quality(num_classes: int, count: int, rng: Generator, *, ease: float, names: Sequence[str]) -> Quality:
    """Quality of answers whose scores are `ease` times the truth plus noise."""
    labels = torch.randint(num_classes, (count,), generator=rng)
    noise = torch.randn(count, num_classes, generator=rng)
    scores = noise + ease * torch.nn.functional.one_hot(labels, num_classes)
    guess = float(torch.bincount(labels).max()) / count
    return class_quality(scores.softmax(1), labels, tuple(names), loss=0.1234, guess=guess)


def space(names: Sequence[str], trials: int, rng: Generator) -> DistanceMatrix:
    """Distances of points in three dimensions, with noise over trials."""
    size = len(names)
    points = torch.rand(size, 3, generator=rng, dtype=torch.float64)
    noise = torch.randn(trials, size, size, generator=rng, dtype=torch.float64) * 0.015
    values = (0.1 + 0.3 * torch.cdist(points, points) + noise).clamp(0.01, 1)
    values[:, range(size), range(size)] = 0.0
    return DistanceMatrix(tuple(names), "frechet", values)


def curve(rng: Generator, steps: int, floor: float) -> tuple[tuple[float, float], ...]:
    """A falling loss with noise."""
    noise = torch.randn(60, generator=rng).mul(0.06).exp().tolist()
    return tuple((steps * (k + 0.5) / 60, (floor + 2.2 * math.exp(-k / 9)) * noise[k]) for k in range(60))


def search(rng: Generator, genotype: str, evaluations: int, top: float) -> dict[str, Any]:
    """What `Outcome.to_dict` tells."""
    scores = (top - 0.25 * torch.rand(evaluations, generator=rng).sort(descending=True).values).tolist()
    history = [[k + 1, max(scores[: k + 1])] for k in range(evaluations)]
    best = {"genotype": genotype, "score": max(scores), "facts": {}}
    return {
        "best": best, "method": "evolution", "steps": evaluations, "evaluations": evaluations, "seconds": 31.4,
        "reason": f"{evaluations} evaluations", "history": history, "found": [best],
    }  # fmt: skip


def contenders(rng: Generator) -> list[Result]:
    """A usual contest."""

    def one(name: str, title: str, kind: str, validation: float, test: float, parameters: int, **more: Any) -> Result:
        return Result(
            name=name, title=title, kind=kind, validation=validation, loss=1 - validation, test=test,
            parameters=parameters, multiply_adds=31 * parameters, seconds=5 + parameters / 9000, network=name,
            **{"samples": 1150, **more},
        )  # fmt: skip

    return [
        one("kin-search", "search from the cells of six", "searched", 0.983, 0.978, 18_314, genotype=CELL,
            curve=curve(rng, 900, 0.01), search=search(rng, CELL, 16, 0.95)),
        one("random-search", "random search in the space of six", "searched", 0.972, 0.975, 21_020, genotype=OTHER_CELL,
            curve=curve(rng, 850, 0.02), search=search(rng, OTHER_CELL, 16, 0.93)),
        one("full-search", "search in the whole space", "searched", 0.979, 0.969, 30_870, genotype=CELL,
            curve=curve(rng, 700, 0.03), search=search(rng, CELL, 14, 0.94)),
        one("finetune", "lenet of six, fine-tuned", "tuned", 0.969, 0.967, 44_426, curve=curve(rng, 800, 0.02)),
        one("lenet", "LeNet", "made", 0.965, 0.961, 44_426, curve=curve(rng, 800, 0.04)),
        one("resnet18", "ResNet-18, 1/8 width", "made", 0.976, 0.972, 701_466, curve=curve(rng, 400, 0.008)),
        one("densenet121", "DenseNet-121, 1/16 width", "made", 0.958, 0.950, 480_290, curve=curve(rng, 300, 0.06)),
        Result(name="vgg16", title="VGG-16", kind="made", refused="images of 8 × 8 are too small for its five pools"),
        one("logistic", "logistic regression", "simple", 0.953, 0.947, 650),
        one("svm", "RBF support vector machine", "simple", 0.981, 0.981, 52_010),
        one("boosting", "gradient boosting", "simple", 0.960, 0.958, 18_600),
        one("transfer", "closed-form transfer from six", "transfer", 0.962, 0.955, 44_426),
    ]  # fmt: skip


def kin(target: str, names: Sequence[str], rng: Generator, trials: int = 3) -> Relations:
    """Rankings by three measures."""
    rankings = []
    for measure, low, wide in (("frechet", 0.1, 0.3), ("short-finetune", 0.6, 1.1), ("logme", -1.4, 1.0)):
        base = (low + wide * torch.rand(len(names), 1, generator=rng)).expand(-1, trials)
        noise = 0.05 * wide * torch.randn(len(names), trials, generator=rng)
        rankings.append(Ranking.of(target, measure, dict(zip(names, (base + noise).tolist(), strict=True))))
    nearest = rankings[0].nearest
    threshold = {
        "value": 0.31, "gain_below": 0.004, "gain_above": -0.002, "num_below": 31, "num_above": 25,
        "interval": [0.22, 0.44], "words": "Kin count as near up to a distance of 0.31. Learned from 56 trials.",
    }  # fmt: skip
    return Relations(
        rankings={one.measure: one.rows() for one in rankings},
        agreement=agreements(rankings),
        refused={"speech": "its inputs are tokens, those of the target images"},
        cells_of=nearest.name,
        distance=nearest.distance,
        near=True,
        why=f"{nearest.name} is the nearest kin that has cells, within the learned limit 0.310",
        threshold=threshold,
        tuned=rankings[1].nearest.name,
        seconds=12.0,
    )


def planted(
    *,
    name: str = "digits-0-to-3",
    num_classes: int = 4,
    count: int = 360,
    ease: float = 3.5,
    kin_names: Sequence[str] = NAMES,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    shape: Sequence[int] = (1, 8, 8),
) -> Solution:
    """A usual solution of a task of classes."""
    rng = Generator().manual_seed(seed)
    names = tuple(class_names or (f"{k}" for k in range(num_classes)))
    quality = classes_quality(num_classes, count, rng, ease=ease, names=names)
    facts = {
        "likelihood": "categorical", "classes": list(names), "input_shape": list(shape), "num_train": 4 * count,
        "num_test": count, "source": "digits?classes=0,1,2,3", "scaling": None, "target_scaling": None,
    }  # fmt: skip
    fit = Fit({}, {}, History(torch.zeros(3)), Scores(quality.metric, 0.1, count), 9.0, True)
    standings = tuple(contenders(rng))
    stages = (
        StageTime("checks of the data", 1.4), StageTime("kin", 12.3, True),
        StageTime("search from the cells of six", 31.4),
        StageTime("random search in the space of six", 30.9), StageTime("search in the whole space", 32.8),
        *(StageTime(f"pace of {k}", 0.02) for k in ("lenet", "resnet18", "densenet121")),
        *(StageTime(one.title, one.seconds) for one in standings if one.validation is not None),
        StageTime("final: search from the cells of six", 11.0),
    )  # fmt: skip
    return Solution(
        solved=Solved(name, "nearkin.search.named:searched?channels=16", facts, seed, (fit,)),
        chosen="kin-search",
        sentence=f"{name}: {quality.metric:.1%} of {count} test samples right by the network found by search from the "
        f"cells of six. It has 18,314 parameters. The runner-up, RBF support vector machine, is behind on the "
        f"validation set by 0.2 points, which may be chance.",
        task=facts,
        quality=quality,
        temperature=1.37,
        standings=standings,
        margins={"svm": (0.002, -0.006, 0.010)},
        finals={"kin-search": quality.metric, "svm": 0.981},
        samples={"available": 1150, "finals": {"kin-search": 1438, "svm": 1438}},
        relations=kin(name, kin_names, rng),
        zoo_value=ZooValue(
            with_kin="kin-search", without_kin="svm", difference=(0.002, -0.006, 0.010),
            seconds={"ranking": 12.3, "kin-search": 31.4, "finetune": 9.9},
            measured=MeasuredValue(chosen=name, metric=0.975, difference=(0.01, -0.002, 0.022), seconds=280.0),
        ),
        checks=Checks(
            (
                Finding("size", False, "1,440 training and 360 test samples.", {"train": 1440, "test": 360}),
                Finding("balance", False, "The commonest class has 1.1 times those of the rarest.", {"ratio": 1.1}),
                Finding("duplicates", True, "9 of 360 test samples (2.5 %) are in the training part too: remove them.",
                        {"exact": 9, "rows": list(range(9))}),
                Finding("leakage", False, "No single column gives the label away.", {"best": 0.41}),
                Finding("noise", False, "About 0.4 % of the labels look wrong.", {"share": 0.004}),
            ),
            1.4,
        ),
        promises=(
            ClaimCheck("Beginning with the kin's cells reaches the accuracy of a search from nothing in half of its "
                    "evaluations.", True, "0.9400 after 3 cells, from nothing after 12 of 14"),
            ClaimCheck("A search finds a better network than random draws from the same space.", False,
                    "0.9720 against 0.9790 on the validation set"),
            ClaimCheck("Fine-tuning does better than training from nothing.", None, "fine-tuning did not take part"),
        ),
        stages=stages,
        matrix=space([name, *kin_names], 3, rng) if kin_names else None,
        pictures=images(len(quality.mistakes), rng, shape),
        seed=seed,
        made={
            "measures": ["frechet", "short-finetune", "logme"], "space": "nearest", "method": "evolution",
            "validation": 0.2,
            "seed": seed, "budget": {"minutes": 5.0}, "device": "cpu",
            "command": "nearkin solve digits-0-to-3 'digits?classes=0,1,2,3'",
            "versions": {"python": "3.12.1", "nearkin": "0.1.0", "torch": "2.13.0"}, "data": "digits?classes=0,1,2,3",
        },
    )  # fmt: skip


def without_kin() -> Solution:
    """An empty zoo."""
    return replace(
        planted(),
        matrix=None,
        relations=Relations(why="the zoo has no other task, so the search is in the whole space"),
        zoo_value=ZooValue(without_kin="svm", not_measured="no contender used a related task"),
    )


def of_values() -> Solution:
    """A table whose targets are values: no images, no search."""
    rng = Generator().manual_seed(1)
    targets = 150 + 70 * torch.randn(400, 1, generator=rng)
    quality = value_quality(targets + 35 * torch.randn(400, 1, generator=rng), targets, loss=0.31)
    whole = planted()
    facts = {**whole.task, "likelihood": "gaussian", "classes": ["y0"], "input_shape": [10], "source": ""}
    kept = tuple(
        replace(one, validation=(one.validation or 0) - 0.3, test=(one.test or 0) - 0.35)
        for one in whole.standings
        if one.kind in ("simple", "made") and one.validation is not None
    )
    return replace(
        whole, quality=quality, task=facts, standings=kept, chosen="svm", temperature=1.0, margins={}, promises=(),
        finals={"svm": quality.metric}, pictures=torch.zeros(0), relations=Relations(why="the zoo has no other task"),
        matrix=None, sentence=f"R² {quality.metric:.3f} on 400 test samples by an RBF support vector machine.",
    )  # fmt: skip


def of_tables() -> Solution:
    """Classes of a table: mistakes without pictures, nothing searched."""
    whole = planted()
    kept = tuple(one for one in whole.standings if one.kind in ("simple", "made"))
    return replace(
        whole, task={**whole.task, "input_shape": [12]}, standings=kept, chosen="svm", finals={"svm": 0.981},
        margins={}, pictures=torch.rand(len(whole.quality.mistakes), 12),
    )  # fmt: skip


def alone() -> Solution:
    """Everything refused but one simple model."""
    whole = without_kin()
    kept = tuple(
        one if one.name == "logistic" else Result(name=one.name, title=one.title, kind=one.kind, refused="no time")
        for one in whole.standings
    )
    return replace(
        whole, standings=kept, chosen="logistic", finals={"logistic": 0.947}, margins={}, promises=(), stages=(),
        made={}, checks=Checks((), 0.0),
    )  # fmt: skip


def hostile() -> Solution:
    """Names that would like to be more than names, everywhere."""
    bad = HOSTILE
    whole = planted(name=bad[0], num_classes=6, class_names=bad, kin_names=[*bad[1:], "fine"], ease=3.0)
    standings = tuple(
        replace(one, title=f"{bad[k % len(bad)]} {k}", refused=one.refused and bad[1], network=bad[2])
        for k, one in enumerate(whole.standings)
    )
    return replace(
        whole,
        sentence=" ".join(bad),
        standings=standings,
        relations=replace(whole.relations, why=bad[0], refused={bad[1]: bad[0]}, threshold={"words": bad[1]}),
        checks=Checks((Finding(bad[0], True, bad[1], {bad[2]: bad[3], "list": list(bad)}),), 1.0),
        promises=(ClaimCheck(bad[0], None, bad[1]),),
        stages=(*(StageTime(text, 1.0) for text in bad), StageTime("x", math.nan)),
        made={bad[0]: bad[1], "versions": {bad[1]: bad[2]}, "command": bad[0]},
        task={**whole.task, "source": bad[1]},
    )


def perfect() -> Solution:
    """No mistake."""
    whole = planted(ease=60.0)
    return replace(whole, pictures=torch.zeros(0))


def crowded() -> Solution:
    """60 classes, 40 kin, 20 standings, large colour images."""
    whole = planted(
        num_classes=60, count=6000, kin_names=[f"task-{k}-of-the-zoo" for k in range(40)], shape=(3, 224, 224),
        ease=4.0, class_names=[f"class number {k}" for k in range(60)],
    )  # fmt: skip
    more = tuple(replace(one, name=f"{one.name}-b", title=f"{one.title}, again", parameters=one.parameters * 2 + 5)
                 for one in whole.standings[:8])  # fmt: skip
    return replace(whole, standings=(*whole.standings, *more))


def thousand() -> Solution:
    """1,000 classes: confusions are not kept."""
    return planted(num_classes=1000, count=3000, ease=6.0)


def unsearched_winner() -> Solution:
    """A simple model won against searched ones."""
    return replace(planted(), chosen="svm", margins={"kin-search": (-0.002, -0.01, 0.006)})


CASES = {
    "normal": planted, "two": lambda: planted(num_classes=2, ease=3.0), "perfect": perfect, "crowded": crowded,
    "twenty": lambda: planted(num_classes=20, ease=4.0), "thousand": thousand, "unsearched": unsearched_winner,
    "no-kin": without_kin, "values": of_values, "tables": of_tables, "alone": alone, "hostile": hostile,
}  # fmt: skip
"""Solutions that a page must show, by name."""
