"""Fréchet distance between the Fisher information of a source's and a target's network on the target's data."""

from collections.abc import Mapping
from dataclasses import dataclass

from nearkin.core.events import Work
from nearkin.distance.fisher_based.alignment import aligned
from nearkin.distance.fisher_based.forms import AUTO, Form, OutputType, form_for, require_form
from nearkin.distance.fisher_based.frechet import distances
from nearkin.distance.fisher_based.readings import information
from nearkin.distance.pair import Pair, Source
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.functional import load
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task

ALIGN_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class FrechetDistance:
    """Fréchet distance from a source to a target.

    Attributes:
        reading: labels of the Fisher information: padded (the target's), model (sampled from the network's own
            predictions), refit (the target's, with a new head), or auto: padded if labels can be padded and networks
            start from the same weights, else model.
        aggregate: what is compared: weight, filter, layer, sorted, mixed, or auto: what suits the reading best.
        align: match neurons before weights are compared.
    """

    reading: str = AUTO
    aggregate: str = AUTO
    align: bool = False

    def __post_init__(self) -> None:
        require_form(self.reading, self.aggregate)

    def form(self, source: Source, target: Task) -> Form:
        """The form for a pair, without `auto`."""
        of_source = OutputType(source.likelihood, source.num_outputs)
        of_target = OutputType(target.likelihood, target.num_outputs)
        return form_for(of_source, of_target, self.reading, self.aggregate, shared_start=source.shared_start)

    def key(self, reading: str, samples: int, shared_start: bool = True) -> str:
        """Key of stored distances; one measurement gives all aggregates.

        Without a shared start, the target's network is another one.
        """
        return f"frechet {reading} train {samples}{' aligned' if self.align else ''}" + (
            "" if shared_start else " unknown start"
        )

    def _key(self, pair: Pair, form: Form) -> str:
        return self.key(form.reading, pair.samples, pair.source.shared_start)

    def is_stored(self, pair: Pair) -> bool:
        """Whether the distance of one pair is stored."""
        form = self.form(pair.source, pair.target.task)
        return form.aggregate in pair.recall(self._key(pair, form))

    def __call__(self, pair: Pair) -> Work[float]:
        """The distance of one pair; stored distances are not measured again."""
        form = self.form(pair.source, pair.target.task)
        key = self._key(pair, form)
        values = pair.recall(key)
        if form.aggregate not in values:
            values = yield from self._measured(pair, form.reading)
            pair.remember(key, values)
        return float(values[form.aggregate])

    def _measured(self, pair: Pair, reading: str) -> Work[Mapping[str, float]]:
        """Distances for all aggregates, both networks on the same samples."""
        source, target, task, trial, count = pair.source, pair.target, pair.task, pair.trial, pair.num_samples
        sources = yield from source.networks(pair.trials)
        own = yield from target.networks(source, pair.trials)
        width = max(sources.num_outputs, own.num_outputs)
        view = SourceOnTarget(own.model(trial), task, task.form, count)
        f_bb = yield from target.information(
            (own, source.inputs, trial, reading, width, count), view, reading, width, count / pair.samples
        )
        if target.is_source(source):
            return distances(f_bb, f_bb)
        model = sources.model(trial)
        if self.align:
            matched = yield from aligned.work(model, view.model, view.train.x[:ALIGN_SAMPLES])
            load(model, matched.params, matched.buffers)
        f_ab = yield from information(SourceOnTarget(model, task, likelihood(source.likelihood), count), reading, width)
        target.passes += pair.share
        return distances(f_ab, f_bb)
