"""Methods that search architectures for several tasks, by name: the interleaved search and its baselines.

To add a method, write a searcher and an entry of `MULTITASK_METHODS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from nearkin.core.errors import OptionError
from nearkin.core.options import Option, options_of, read_options
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.hypernet_search import HypernetInterleave, HypernetOptions
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.multitask.joint.branched import Branched, BranchedOptions
from nearkin.multitask.joint.fused_columns import FusedColumns, FusedColumnsOptions
from nearkin.multitask.joint.independent import independent_searches
from nearkin.multitask.joint.joint_search import Joint, JointOptions
from nearkin.multitask.joint.minibatch_interleaving import MinibatchInterleaving, MinibatchOptions
from nearkin.multitask.joint.separate_interleaving import SeparateInterleaving, SeparateOptions
from nearkin.multitask.matching import MatchingOptions
from nearkin.multitask.multitask_search import MultitaskOptions
from nearkin.search.methods.darts.gradient_options import GradientOptions
from nearkin.search.searcher import Searcher
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task

Searchers = tuple[Searcher[Any], ...]
"""One searcher of an architecture for all tasks, or one for each task; `run_searches` runs them."""

NOT_OPTIONS = ("num_rounds", "steps_per_pass", "sharing")  # arguments of a method, and what its name says


@dataclass(frozen=True)
class MultitaskMethod:
    """A method that searches architectures for several tasks.

    Attributes:
        name: name on the command line.
        summary: description in one line.
        settings: options of the searcher; its plain fields are the options of the method.
        make: function that makes the searchers from tasks, space and options.
        shared: whether one architecture serves all tasks; else every task has its own.
    """

    name: str
    summary: str
    settings: MultitaskOptions
    make: Callable[[Sequence[Task], Space, Any], Searchers]
    shared: bool = True

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Options of the method."""
        if not isinstance(self.settings, InterleaveOptions):
            return options_of([self.settings], NOT_OPTIONS)
        transfer = self.settings.transfer
        return options_of([self.settings, transfer, transfer.matching], NOT_OPTIONS)

    def build(
        self,
        tasks: Sequence[Task],
        space: Space,
        gradient: GradientOptions,
        num_rounds: int,
        options: Mapping[str, Any] | None = None,
    ) -> Searchers:
        """Searchers of the method; in a pass every task takes `num_rounds` steps of its weights, whatever the method.

        Args:
            tasks: the tasks, in the order of their turns.
            space: space of cells.
            gradient: options of the supernets, the weights and the architecture.
            num_rounds: M.
            options: options of the method by name; texts are parsed.
        """
        values = read_options(self.options, options or {}, self.name)
        names = {field.name for field in fields(self.settings)}
        changes: dict[str, Any] = {name: value for name, value in values.items() if name in names}
        changes |= {name: num_rounds for name in ("num_rounds", "steps_per_pass") if name in names}
        if isinstance(self.settings, InterleaveOptions):
            changes["transfer"] = _transfer(self.settings.transfer, values)
        return self.make(tasks, space, replace(self.settings, gradient=gradient, **changes))


def _transfer(default: EncoderTransfer, values: Mapping[str, Any]) -> EncoderTransfer:
    """Options of the transfer from those of the method."""

    def of(kind: type[Any]) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(kind) if field.name in values}

    return replace(default, **of(EncoderTransfer), matching=MatchingOptions(**of(MatchingOptions)))


def _one(make: Callable[[Sequence[Task], Space, Any], Searcher[Any]]) -> Callable[..., Searchers]:
    return lambda tasks, space, options: (make(tasks, space, options),)


MULTITASK_METHODS: dict[str, MultitaskMethod] = {
    method.name: method
    for method in (
        MultitaskMethod(
            "interleave", "tasks take turns, and each learns from the encoder of the one before it",
            InterleaveOptions(), _one(Interleave),
        ),
        MultitaskMethod(
            "hypernet", "as interleave, but one hypernetwork computes the encoder weights of all tasks and rounds",
            HypernetOptions(), _one(HypernetInterleave),
        ),
        MultitaskMethod(
            "soft", "tasks learn at the same time, with encoders that are drawn together",
            JointOptions(sharing="soft"), _one(Joint),
        ),
        MultitaskMethod(
            "hard", "tasks learn at the same time, with one encoder and a head for each",
            JointOptions(sharing="hard"), _one(Joint),
        ),
        MultitaskMethod(
            "architecture", "tasks learn at the same time and share nothing but the architecture",
            JointOptions(sharing="architecture"), _one(Joint),
        ),
        MultitaskMethod(
            "minibatch", "as soft, but tasks take their steps one after the other",
            MinibatchOptions(), _one(MinibatchInterleaving),
        ),
        MultitaskMethod(
            "separate", "one task after the other is searched, and starts from the encoder of the one before it",
            SeparateOptions(), _one(SeparateInterleaving),
        ),
        MultitaskMethod(
            "independent", "PC-DARTS for every task alone; every task has an architecture of its own",
            JointOptions(sharing="architecture"), independent_searches, shared=False,
        ),
        MultitaskMethod(
            "branched", "which cells tasks share is searched too", BranchedOptions(), _one(Branched),
        ),
        MultitaskMethod(
            "fused-columns", "which features the encoders of tasks take from each other is searched too",
            FusedColumnsOptions(), _one(FusedColumns),
        ),
    )
}  # fmt: skip
"""Methods by name."""


def multitask_method(name: str) -> MultitaskMethod:
    """Method with a name.

    >>> multitask_method("firm")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown method 'firm'; choose one of interleave, hypernet, soft, hard, \
architecture, minibatch, separate, independent, branched, fused-columns
    """
    if name not in MULTITASK_METHODS:
        raise OptionError(f"unknown method {name!r}; choose one of {', '.join(MULTITASK_METHODS)}")
    return MULTITASK_METHODS[name]
