"""Divide the time of a run: most of it to the contender that the data favours, little to quick checks of the others.

With equal shares ten contenders lose to one well-trained network by 9.6 points on average (nine image tasks, 15 s). So
a run with a time limit fits simple models on a few per cent of it, trains one main contender for most of it, and gives
further contenders only what the main one cannot use. `Plan.compare_all` divides the time equally instead.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nearkin.nets.recipe import Recipe
from nearkin.solver.simple.models import SIMPLE
from nearkin.tasks.network_inputs import needs_adopted_network
from nearkin.tasks.task import Task
from nearkin.tasks.texts import is_text

QUICK = 0.04  # share of each simple model and of closed-form transfer
CONTINUED = 0.5  # time of the final training on all data, relative to the first training
JOINING = 0.1  # share for the networks that are added to the zoo
REPORT = 0.03  # share for the report, and
LEAST_REPORT = 0.7  # seconds
REFITS = 0.25  # share for the final fits of a table with one validation set
MOST_MEMBERS = 5  # networks that are averaged, one for each split
LEAST_JOINING = 60.0  # seconds of a run that includes adding its task to the zoo
JOINING_LATER = 0.04  # share for training the networks that are added after the answer
SCORING = 0.06  # largest share for test-time averaging
LEAST_QUICK = 0.5  # seconds
FEW_SAMPLES = 500  # up to this, closed-form transfer can use all samples in a short time
ENOUGH_EPOCHS = 100  # of the main contender; more time goes to further contenders
ENOUGH_PRETRAINED = 30  # the same if it is a pretrained network
LEAST_STEPS = 200  # fewer are marked as starved
FURTHER = (
    "finetune",
    "encoder-finetune",
    "cnn",
    "cnn-large",
    "transfer",
    "boosting",
    "kin-search",
    "full-search",
    "random-search",
)  # then the others
WEAK_ON_IMAGES = ("logistic",)  # left out of short runs
SLOW = ("boosting",)  # simple models that take long on images and are seldom the best there
LEAST_FURTHER = 10.0  # seconds of a further contender
LEAST_TRANSFER = 1.0  # processor seconds of closed-form transfer; with less it uses a small part of the samples
SIDE = 0.1  # largest share of the time left that a simple model may take from the main network
TABLE_PENALTY = 0.01  # L2 penalty of the network for tables


class Role(StrEnum):
    """Part of a contender in a run with a time limit."""

    QUICK = "quick"
    MAIN = "main"
    FURTHER = "further"


@dataclass(frozen=True)
class Regime:
    """What the data favours, with the reason for the report.

    Attributes:
        main: names of the contenders that share the main time; those that are absent are skipped.
        few_labels: whether closed-form transfer can use all labels in a short time.
        why: the rule and its numbers.
    """

    main: tuple[str, ...]
    why: str
    few_labels: bool = False

    def role(self, name: str, kind: str) -> Role:
        """Role of a contender."""
        if name in self.main:
            return Role.MAIN
        quick = kind == "frozen" or (kind == "simple" and name not in SLOW) or (kind == "transfer" and self.few_labels)
        return Role.QUICK if quick else Role.FURTHER


def regime(task: Task, favoured: str = "") -> Regime:
    """Which contenders get the main share of the time for a task.

    For images this is one CNN at every number of labels: with 5 to 50 labels per class it was as good as fine-tuning a
    related network or better, and closed-form transfer, which is quick, was better at 10 only (`benchmarks/regime.py`).
    It is an adopted network if its features suit the images; `favoured` says why.
    """
    count = len(task.train)
    if needs_adopted_network(task):
        inputs = "texts" if is_text(task) else "named"
        return Regime(("encoder",), f"the inputs are {inputs}, so adopted networks share the time")
    if len(task.input_shape) != 3:
        return Regime((*SIMPLE, "mlp"), "the inputs are a table, so all models share the time")
    few = count <= FEW_SAMPLES
    why = favoured or f"{count:,} images, so one CNN from scratch gets most of the time"
    main = "encoder-finetune" if favoured else "cnn"
    return Regime((main,), f"{why}, and closed-form transfer can use all of them" if few else why, few)


def further_rank(name: str) -> int:
    """Order of the contenders that get the time which the main ones cannot use."""
    return FURTHER.index(name) if name in FURTHER else len(FURTHER)


def continued(recipe: Recipe) -> Recipe:
    """Recipe that continues a training on more data: half the learning rate, half the time."""
    assert recipe.seconds is not None
    return replace(
        recipe, learning_rate=recipe.learning_rate / 2, warmup=recipe.warmup / 2, seconds=CONTINUED * recipe.seconds
    )


def shifts(task: Task) -> str:
    """Augmentation by random shifts of images, up to a ninth of their side."""
    return f"crop={max(1, round(min(task.input_shape[1:]) / 9))}"


def cnn_recipe(task: Task, flip: bool) -> Recipe:
    """Recipe of the CNN: Nesterov SGD, label smoothing, one cosine cycle, random shifts by a ninth of the image.

    Real-valued targets are trained by Adam.
    """
    augment = shifts(task) + (",flip" if flip else "")
    adam = Recipe(epochs=20, warmup=0.2, augment=augment, learning_rate=3e-3, weight_decay=5e-4)
    if task.likelihood != "categorical":
        return adam
    return replace(adam, optimiser="sgd", learning_rate=0.03, smoothing=0.1)


def pretrained_recipe(task: Task, flip: bool, **options: Any) -> Recipe:
    """Recipe of fine-tuning an adopted network; images with random shifts and, where they suit, flips."""
    images = len(task.input_shape) == 3
    augment = {"augment": shifts(task) + (",flip" if flip else "")} if images else {}
    return Recipe.for_pretrained(task, **{**augment, **options})


def table_recipe(task: Task, **options: Any) -> Recipe:
    """Recipe of the network for tables, one hidden layer of 128 units: Adam with an L2 penalty.

    On five tables (two draws each, five folds, 60 epochs) it had the lowest or nearly the lowest loss of six networks
    with weight decay, penalty or dropout: R² 0.57 instead of 0.45 for two layers with a decoupled decay of 3 on
    generated values.
    """
    return Recipe.suited(task, **{"optimiser": "adam-l2", "weight_decay": TABLE_PENALTY, **options})
