"""Derived tasks: classes picked, merged and noised; samples limited, balanced and split anew. Each is Task → Task.

Inputs are shared with the parent task and its scaling is kept, so that tasks made from one data set see the same
pixels: what differs between them is the question.
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

DROPPED = -1


def detect(task: Task, wanted: Sequence[str]) -> Task:
    """Two classes: `other`, and any of the wanted ones.

    >>> toy = Task.from_arrays("toy", torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]), classes=["a", "b", "c"])
    >>> detect(toy, ["c", "0"]).classes
    ('other', 'c+a')
    """
    numbers = class_numbers(task, wanted)
    require(
        len(numbers) < len(task.classes),
        f"{task.name}: detecting all {len(task.classes)} classes leaves nothing to tell them from; name fewer",
        DataError,
    )
    mapping = torch.zeros(len(task.classes), dtype=torch.int64)
    mapping[numbers] = 1
    return relabelled(task, mapping, ("other", "+".join(task.classes[i] for i in numbers)))


def only(task: Task, wanted: Sequence[str], rest: str = "drop") -> Task:
    """The wanted classes, in that order; the rest is dropped, or becomes one more class `other`."""
    require(rest in ("drop", "other"), f"rest must be drop or other, got {rest!r}")
    numbers = class_numbers(task, wanted)
    left = len(numbers) < len(task.classes)
    mapping = torch.full((len(task.classes),), len(numbers) if rest == "other" else DROPPED, dtype=torch.int64)
    mapping[numbers] = torch.arange(len(numbers))
    names = tuple(task.classes[i] for i in numbers)
    return relabelled(task, mapping, (*names, "other") if rest == "other" and left else names)


def parity(task: Task) -> Task:
    """Two classes: even and odd, by the classes' names where those are whole numbers, else by their positions."""
    _categorical(task, "parity")
    numbers = [number for name in task.classes if (number := whole_number(name)) is not None]
    values = numbers if len(numbers) == len(task.classes) else range(len(task.classes))
    return relabelled(task, torch.tensor([value % 2 for value in values]), ("even", "odd"))


def merged(task: Task, groups: Sequence[Sequence[str]]) -> Task:
    """Every group becomes one class, named by its members; classes in no group stay as they are."""
    numbered = [class_numbers(task, group) for group in groups]
    flat = [number for group in numbered for number in group]
    require(len(set(flat)) == len(flat), f"{task.name}: a class stands in two groups of merge; name each once")
    mapping = torch.full((len(task.classes),), DROPPED)
    names: list[str] = []
    for group in numbered:
        mapping[group] = len(names)
        names.append("+".join(task.classes[i] for i in group))
    for place, name in enumerate(task.classes):
        if place not in flat:
            mapping[place] = len(names)
            names.append(name)
    return relabelled(task, mapping, tuple(names))


def corrupted(task: Task, share: float, seed: int = 0) -> Task:
    """A share of the training labels replaced by classes drawn at random; the test part keeps its labels.

    A larger share corrupts the same samples and more, so that tasks of rising noise are nested.
    """
    _categorical(task, "corrupt")
    require(0 <= share <= 1, f"corrupt takes a share from 0 to 1, got {share}")
    labels, streams = task.train.labels().clone(), Streams(seed)
    order = torch.randperm(len(labels), generator=streams.at("corrupt", "which"))
    random = torch.randint(len(task.classes), labels.shape, generator=streams.at("corrupt", "label"))
    hit = order[: round(share * len(labels))]
    labels[hit] = random[hit]
    return replace(task, train=replace(task.train, targets=Values(labels)))


def limited(task: Task, count: int, seed: int = 0, *, even: bool = False) -> Task:
    """At most `count` training samples, with the class shares of the training part; the test part stays whole.

    `even` draws the same number of every class instead, as far as the classes are large enough.
    """
    require(count >= 1, f"limit takes a number of samples from 1 on, got {count}")
    if count >= len(task.train):
        return task
    if task.likelihood == "categorical":
        require(
            count >= len(task.classes),
            f"{task.name}: a limit of {count} leaves some of the "
            f"{len(task.classes)} classes without a sample; use limit={len(task.classes)} or more",
            DataError,
        )
        draw = balanced_index if even else stratified_index
        index = draw(task.train.labels(), count, seed)
    else:
        index = torch.randperm(len(task.train), generator=Streams(seed).at("limit"))[:count].sort().values
    return replace(task, train=task.train.chosen(index))


def balanced(task: Task, seed: int = 0) -> Task:
    """Every class as often as the rarest one, in both parts."""
    _categorical(task, "balance")

    def even(part: Examples) -> Examples:
        labels = part.labels()
        counts = torch.bincount(labels)
        return part.chosen(balanced_index(labels, int(counts[counts > 0].min()) * int((counts > 0).sum()), seed))

    return replace(task, train=even(task.train), test=even(task.test))


def resplit(task: Task, seed: int) -> Task:
    """Both parts pooled and split anew in the same proportion, stratified; the same seed gives the same split."""
    require(task.likelihood != "language", f"{task.name}: text is split in its own order, not at random", DataError)
    inputs = Joined(task.train.inputs, task.test.inputs)
    targets: Rows = Joined(task.train.targets, task.test.targets)
    labels = None
    if task.likelihood == "categorical":
        labels = torch.cat([task.train.labels(), task.test.labels()])
        targets = Values(labels)
    pool = replace(task.train, inputs=inputs, targets=targets)
    learn, judge = split_index(labels, len(pool), len(task.test) / len(pool), seed)
    return replace(task, train=pool.chosen(learn), test=pool.chosen(judge)).rescaled()


def relabelled(task: Task, mapping: Tensor, names: tuple[str, ...]) -> Task:
    """Class i becomes class `mapping[i]` of `names`; samples of classes mapped to −1 are left out."""

    def mapped(part: Examples) -> Examples:
        labels = mapping[part.labels()]
        if (labels >= 0).all():
            return replace(part, targets=Values(labels))
        keep = torch.nonzero(labels >= 0).flatten()
        return replace(part.chosen(keep), targets=Values(labels[keep]))

    return replace(task, train=mapped(task.train), test=mapped(task.test), classes=names)


def class_numbers(task: Task, wanted: Sequence[str]) -> list[int]:
    """Positions of classes given by name or, where no class has that name, by number."""
    _categorical(task, "choosing classes")
    numbers: list[int] = []
    for text in wanted:
        number = task.classes.index(text) if text in task.classes else whole_number(text)
        if number is None or not 0 <= number < len(task.classes):
            near = difflib.get_close_matches(text, task.classes, 1) if number is None else []
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(task.classes[:12])}"
            raise OptionError(f"{task.name}: there is no class {quoted(text)}; {hint}")
        require(number not in numbers, f"{task.name}: class {text} is named twice; name it once")
        numbers.append(number)
    require(len(numbers) > 0, f"{task.name}: no class was named; it has {', '.join(task.classes[:12])}")
    return numbers


def _categorical(task: Task, change: str) -> None:
    require(
        task.likelihood == "categorical",
        f"{task.name}: {change} needs a task with classes, this one is {task.likelihood}",
        DataError,
    )


def held_out(task: Task, share: float, seed: int) -> Task:
    """The task with a part of its training data set aside as its test part; the test part itself is left out.

    Classes are held out alike; of a text the end is.

    >>> x = torch.randn(20, 2)
    >>> task = Task.from_arrays("sign", x, (torch.arange(20) % 2), x[:4], torch.tensor([0, 1, 0, 1]))
    >>> part = held_out(task, 0.2, seed=0)
    >>> len(part.train), len(part.test), part.test.labels().tolist()
    (16, 4, [0, 1, 0, 1])
    """
    count = len(task.train)
    if task.likelihood == "language":
        require(0 < share < 1, f"the share set aside must lie between 0 and 1, got {share}")
        cut = min(count - 1, round((1 - share) * count))
        learn, judge = torch.arange(cut), torch.arange(cut, count)
    else:
        labels = task.train.labels() if task.likelihood == "categorical" else None
        learn, judge = split_index(labels, count, share, derived_seed(seed, "held out"))
    return replace(task, train=task.train.chosen(learn), test=task.train.chosen(judge), source="")
