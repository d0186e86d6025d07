"""Recipe: the options of training, except the data and the seed."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from nearkin.core.errors import OptionError, require
from nearkin.tasks.augment import augmentation
from nearkin.tasks.batches import num_batches
from nearkin.tasks.task import Task

OPTIMISERS = ("adam", "adam-l2", "sgd")
SCHEDULES = ("cosine", "step", "constant")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
PRETRAINED_EPOCHS = 20  # of fine-tuning, at most
STEPS_WANTED = 800  # steps of a default recipe: enough for small networks on all built-in data sets


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a network; values are checked when a recipe is created.

    Attributes:
        epochs: passes over the training data.
        steps: number of steps; if set, it replaces `epochs`.
        seconds: time limit of the steps. The schedule follows the larger of the two shares, of steps and of time, so
            that a run which the limit ends is annealed too.
        batch_size: maximum number of samples in a step.
        optimiser: `adam` (decoupled weight decay), `adam-l2` (weight decay as a penalty in the loss) or `sgd` (with
            `momentum`).
        learning_rate: its largest value, after the warm-up.
        momentum: Nesterov momentum of `sgd`.
        weight_decay: strength of the weight decay.
        schedule: `cosine` to zero, `step` (times `decay` at each of `milestones`), or `constant`.
        milestones: fractions of the run at which `step` decays.
        decay: factor of `step`.
        warmup: fraction of the run in which the learning rate rises from zero.
        clip: largest norm of the gradient; 0 for no limit.
        smoothing: label smoothing, for tasks with classes.
        averaging: fraction of the run, at its end, over which weights are averaged (Polyak); 0 for none.
        target: stop when the metric on the validation set reaches this value: the 1 − ε of an ε-approximation network.
        patience: stop after this many epochs without a lower validation loss; 0 for never.
        validation: fraction of the training set that is the validation set, used only if `target` or `patience` is set.
        precision: `auto` is bfloat16 on a CUDA device that supports it, float32 elsewhere.
        augment: augmentations as text, such as `crop=2,flip`.
        frozen_statistics: normalisation layers use and keep their running statistics, those of an earlier training.
    """

    epochs: int = 20
    steps: int | None = None
    seconds: float | None = None
    batch_size: int = 64
    optimiser: str = "adam"
    learning_rate: float = 2e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup: float = 0.05
    clip: float = 0.0
    smoothing: float = 0.0
    averaging: float = 0.0
    target: float | None = None
    patience: int = 0
    validation: float = 0.1
    precision: str = "auto"
    augment: str = ""
    frozen_statistics: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        require(self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}")
        require(self.steps is None or self.steps >= 1, f"steps must be 1 or more, got {self.steps}")
        require(self.seconds is None or self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        require(self.batch_size >= 1, f"batch_size must be 1 or more, got {self.batch_size}")
        require(self.learning_rate > 0, f"learning_rate must be above 0, got {self.learning_rate}")
        for name, allowed in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            value = getattr(self, name)
            require(value in allowed, f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        for name in ("momentum", "warmup", "smoothing"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "clip", "patience"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more, got {getattr(self, name)}")
        require(0 <= self.averaging <= 1, f"averaging is a fraction of the run from 0 to 1, got {self.averaging}")
        require(0 < self.validation < 1, f"validation is a fraction between 0 and 1, got {self.validation}")
        augmentation(self.augment)

    @property
    def stops_early(self) -> bool:
        """Whether a validation set is needed."""
        return self.target is not None or self.patience > 0

    def total_steps(self, steps_per_epoch: int) -> int:
        """Number of steps of a run that is not stopped early."""
        return self.steps if self.steps is not None else self.epochs * steps_per_epoch

    def rate(self, step: float, total: int) -> float:
        """Learning rate of step 0, 1, … of `total`.

        >>> recipe = Recipe(learning_rate=1.0, warmup=0.0)
        >>> recipe.rate(0, 100), round(recipe.rate(50, 100), 6)
        (1.0, 0.5)
        """
        warmup = round(self.warmup * total)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, total - warmup)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "step":
            return float(self.learning_rate * self.decay ** sum(step >= point * total for point in self.milestones))
        return self.learning_rate

    @classmethod
    def suited(cls, task: Task, **changes: Any) -> "Recipe":
        """The default recipe for the size of a task, with changed fields.

        Adam with a cosine schedule, about 800 steps and at least three epochs. Unknown names are an error.
        """
        return cls.of_size(len(task.train), **changes)

    @classmethod
    def of_size(cls, num_samples: int, **changes: Any) -> "Recipe":
        """The default recipe for this number of training samples, with changed fields."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise OptionError(f"unknown training option {unknown[0]!r}; a recipe has {', '.join(sorted(known))}")
        changes.setdefault("batch_size", 64 if num_samples < 10_000 else 128)
        per_epoch = num_batches(num_samples, changes["batch_size"])
        changes.setdefault("epochs", min(60, max(3, math.ceil(STEPS_WANTED / per_epoch))))
        return cls(**changes)

    @classmethod
    def for_pretrained(cls, task: Task, **changes: Any) -> "Recipe":
        """Recipe of fine-tuning all weights of a pretrained network, with changed fields.

        Its head should be fitted to its features before. The learning rates were the best of three to four on
        photographs and digits (a CNN), and on short texts (a transformer), with 70 to 1,000 labels; with statistics of
        its own batches, or from a drawn head, a network became worse than its frozen features (`docs/decisions.md`).
        """
        batch, rate = (32, 3e-4) if len(task.input_shape) == 3 else (16, 1e-4)
        usual = {"batch_size": batch, "learning_rate": rate, "warmup": 0.1, "frozen_statistics": True}
        recipe = cls.suited(task, **{**usual, **changes})
        return recipe if "epochs" in changes else replace(recipe, epochs=min(recipe.epochs, PRETRAINED_EPOCHS))

    def like(self, num_samples: int, num_others: int) -> "Recipe":
        """This recipe of a task with `num_samples` samples, for a task with `num_others` samples.

        Fields that have their default for the first size get the default for the second.

        >>> usual, short = Recipe.of_size(1000), Recipe.of_size(1000, epochs=8)
        >>> usual.like(1000, 200) == Recipe.of_size(200), short.like(1000, 200).epochs
        (True, 8)
        """
        usual, own = Recipe.of_size(num_samples).to_dict(), self.to_dict()
        return Recipe.of_size(num_others, **{name: value for name, value in own.items() if value != usual.get(name)})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Recipe(**values)` is the inverse. Unused later fields are left out."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        unused = {"seconds": None, "frozen_statistics": False}
        return {name: value for name, value in values.items() if name not in unused or value != unused[name]}
