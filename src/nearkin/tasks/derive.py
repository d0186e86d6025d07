"""Derived tasks: choose and merge classes, corrupt labels; draw, balance and split samples. Each is Task → Task.

A derived task shares the inputs and the scaling of its parent, so that tasks of one data set have the same inputs and
differ in their labels only.
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted, whole_number
from nearkin.core.rng import Streams, derived_seed
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Joined, Rows, Values
from nearkin.tasks.split import balanced_index, split_index, stratified_index
from nearkin.tasks.task import Task
from nearkin.tasks.weights import ClassWeight, class_weights, with_weights

DROPPED = -1


def detect(task: Task, wanted: Sequence[str]) -> Task:
    """Two classes: `other`, and all wanted classes together.

    >>> toy = Task.from_arrays("toy", torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]), classes=["a", "b", "c"])
    >>> detect(toy, ["c", "0"]).classes
    ('other', 'c+a')
    """
    numbers = class_numbers(task, wanted)
    if len(numbers) == len(task.classes):
        raise DataError(f"{task.name}: detect names all {len(task.classes)} classes, so none are left; name fewer")
    mapping = torch.zeros(len(task.classes), dtype=torch.int64)
    mapping[numbers] = 1
    return relabelled(task, mapping, ("other", "+".join(task.classes[i] for i in numbers)))


def only(task: Task, wanted: Sequence[str], rest: str = "drop") -> Task:
    """The wanted classes, in that order; the other classes are dropped, or become one class `other`."""
    require(rest in ("drop", "other"), f"rest must be drop or other, got {rest!r}")
    numbers = class_numbers(task, wanted)
    left = len(numbers) < len(task.classes)
    mapping = torch.full((len(task.classes),), len(numbers) if rest == "other" else DROPPED, dtype=torch.int64)
    mapping[numbers] = torch.arange(len(numbers))
    names = tuple(task.classes[i] for i in numbers)
    return relabelled(task, mapping, (*names, "other") if rest == "other" and left else names)


def parity(task: Task) -> Task:
    """Two classes, even and odd: by the names of the classes if all are whole numbers, else by their positions."""
    _categorical(task, "parity")
    numbers = [number for name in task.classes if (number := whole_number(name)) is not None]
    values = numbers if len(numbers) == len(task.classes) else range(len(task.classes))
    return relabelled(task, torch.tensor([value % 2 for value in values]), ("even", "odd"))


def merged(task: Task, groups: Sequence[Sequence[str]]) -> Task:
    """Every group becomes one class, named by its members; other classes do not change."""
    numbered = [class_numbers(task, group) for group in groups]
    flat = [number for group in numbered for number in group]
    require(len(set(flat)) == len(flat), f"{task.name}: merge names a class in two groups; name each class once")
    mapping = torch.full((len(task.classes),), DROPPED)
    names: list[str] = []
    for group in numbered:
        mapping[group] = len(names)
        names.append("+".join(task.classes[i] for i in group))
    for number, name in enumerate(task.classes):
        if number not in flat:
            mapping[number] = len(names)
            names.append(name)
    return relabelled(task, mapping, tuple(names))


def corrupted(task: Task, share: float, seed: int = 0) -> Task:
    """Replace a share of the training labels by random classes; test labels do not change.

    A larger share corrupts the same samples and more.
    """
    _categorical(task, "corrupt")
    require(0 <= share <= 1, f"corrupt must be a share from 0 to 1, got {share}")
    labels, streams = task.train.labels().clone(), Streams(seed)
    order = torch.randperm(len(labels), generator=streams.at("corrupt", "which"))
    random = torch.randint(len(task.classes), labels.shape, generator=streams.at("corrupt", "label"))
    hit = order[: round(share * len(labels))]
    labels[hit] = random[hit]
    return replace(task, train=replace(task.train, targets=Values(labels)))


def limited(task: Task, count: int, seed: int = 0, *, even: bool = False) -> Task:
    """At most `count` training samples with the class shares of the training set; the test set does not change.

    `even` draws the same number of every class instead, as far as the classes are large enough.
    """
    require(count >= 1, f"limit must be 1 sample or more, got {count}")
    if count >= len(task.train):
        return task
    if task.likelihood == "categorical":
        if count < len(task.classes):
            raise DataError(
                f"{task.name}: a limit of {count} leaves some of the "
                f"{len(task.classes)} classes without a sample; use limit={len(task.classes)} or more"
            )
        index = (balanced_index if even else stratified_index)(task.train.labels(), count, seed)
    else:
        index = torch.randperm(len(task.train), generator=Streams(seed).at("limit"))[:count].sort().values
    return replace(task, train=task.train.chosen(index))


def part(task: Task, number: int, count: int) -> Task:
    """Part `number` of `count` disjoint parts of the training set, drawn at random; the test set does not change.

    The parts are nearly equal in size and in class shares, and do not depend on modifiers of the classes.

    >>> toy = Task.from_arrays("toy", torch.arange(40.0)[:, None], torch.arange(40) % 2)
    >>> [len(part(toy, number, 2).train) for number in (1, 2)], len(part(toy, 1, 2).test)
    ([16, 16], 8)
    """
    require(
        1 <= number <= count and count >= 2,
        f"part got {number}/{count}, expected the number of a part and of all parts, as in 1/2 and 2/2",
    )
    total = len(task.train)
    labels = task.train.labels() if task.likelihood == "categorical" else torch.zeros(total, dtype=torch.int64)
    order = torch.randperm(total, generator=Streams(0).at("part"))
    order = order[labels[order].argsort(stable=True)]  # every class in turn, shuffled
    index = order[number - 1 :: count].sort().values
    require(len(index) > 0, f"{task.name}: {total} training samples cannot be divided in {count}; use fewer", DataError)
    return replace(task, train=task.train.chosen(index))


def balanced(task: Task, seed: int = 0) -> Task:
    """As many samples of every class as of the rarest, in training and test set."""
    _categorical(task, "balance")

    def even(examples: Examples) -> Examples:
        labels = examples.labels()
        counts = torch.bincount(labels)
        total = int(counts[counts > 0].min()) * int((counts > 0).sum())
        return examples.chosen(balanced_index(labels, total, seed))

    return replace(task, train=even(task.train), test=even(task.test))


def resplit(task: Task, seed: int) -> Task:
    """Join training and test set and split them again in the same proportion, stratified, by a seed."""
    if task.likelihood == "language":
        raise DataError(f"{task.name}: text keeps its order and is not split at random; leave split out")
    inputs = Joined(task.train.inputs, task.test.inputs)
    targets: Rows = Joined(task.train.targets, task.test.targets)
    labels = None
    if task.likelihood == "categorical":
        labels = torch.cat([task.train.labels(), task.test.labels()])
        targets = Values(labels)
    weights = task.train.weights
    if weights is not None:
        weights = torch.cat([weights, torch.ones(len(task.test))])
    pool = replace(task.train, inputs=inputs, targets=targets, weights=weights)
    train, test = split_index(labels, len(pool), len(task.test) / len(pool), seed)
    return replace(task, train=pool.chosen(train), test=replace(pool.chosen(test), weights=None)).rescaled()


def relabelled(task: Task, mapping: Tensor, names: tuple[str, ...]) -> Task:
    """Class i becomes class `mapping[i]` of `names`; samples of classes with −1 are left out."""

    def mapped(examples: Examples) -> Examples:
        labels = mapping[examples.labels()]
        if (labels >= 0).all():
            return replace(examples, targets=Values(labels))
        kept = torch.nonzero(labels >= 0).flatten()
        return replace(examples.chosen(kept), targets=Values(labels[kept]))

    return replace(task, train=mapped(task.train), test=mapped(task.test), classes=names)


def class_numbers(task: Task, wanted: Sequence[str]) -> list[int]:
    """Positions of classes that are named by name or, if no class has that name, by number."""
    _categorical(task, "choosing classes")
    numbers: list[int] = []
    for text in wanted:
        number = task.classes.index(text) if text in task.classes else whole_number(text)
        if number is None or not 0 <= number < len(task.classes):
            near = difflib.get_close_matches(text, task.classes, 1) if number is None else []
            hint = f"did you mean {near[0]}?" if near else f"the classes are {', '.join(task.classes[:12])}"
            raise OptionError(f"{task.name}: there is no class {quoted(text)}; {hint}")
        require(number not in numbers, f"{task.name}: class {text} is named twice; name it once")
        numbers.append(number)
    require(len(numbers) > 0, f"{task.name}: no class was named; the classes are {', '.join(task.classes[:12])}")
    return numbers


def class_weighted(task: Task, weight: ClassWeight | None) -> Task:
    """The same task with training samples weighted by their class, times the weights that they have already.

    >>> toy = Task.from_arrays("toy", torch.randn(8, 2), torch.tensor([0] * 6 + [1] * 2), torch.randn(2, 2), [0, 1])
    >>> class_weighted(toy, "balanced").train.weights.unique()
    tensor([0.6667, 2.0000])
    """
    if weight is None:
        return task
    _categorical(task, "class_weight")
    weights = class_weights(task.name, task.train.labels(), task.classes, weight)
    own = task.train.weights
    return replace(task, train=with_weights(task.train, weights if own is None else weights * own))


def _categorical(task: Task, change: str) -> None:
    if task.likelihood != "categorical":
        raise DataError(
            f"{task.name}: {change} needs a task with classes, but its likelihood is {task.likelihood}; leave it out"
        )


def held_out(task: Task, share: float, seed: int) -> Task:
    """A task whose test set is a share of the training set; the task's own test set is left out.

    The held-out share is stratified by class; for text it is the end.

    >>> x = torch.randn(20, 2)
    >>> task = Task.from_arrays("sign", x, (torch.arange(20) % 2), x[:4], torch.tensor([0, 1, 0, 1]))
    >>> validation = held_out(task, 0.2, seed=0)
    >>> len(validation.train), len(validation.test), validation.test.labels().tolist()
    (16, 4, [0, 1, 0, 1])
    """
    count = len(task.train)
    if task.likelihood == "language":
        require(0 < share < 1, f"the share set aside must be between 0 and 1, got {share}")
        cut = min(count - 1, round((1 - share) * count))
        train, test = torch.arange(cut), torch.arange(cut, count)
    else:
        labels = task.train.labels() if task.likelihood == "categorical" else None
        train, test = split_index(labels, count, share, derived_seed(seed, "held out"))
    return replace(task, train=task.train.chosen(train), test=task.train.chosen(test), source="")
