"""Rank trained networks for a data set: which one should be fine-tuned?

Networks of different architectures have different weights, so they are compared by their features: the inputs of the
head, for some training samples of the target. The networks are loaded one after the other, so that memory is needed for
one at a time, and features are stored by content, so that they are computed once. The order of the candidates does not
matter.
"""

import gc
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.errors import DataError, MismatchError, NearkinError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.lazy import Lazy
from nearkin.core.memory import peak_mebibytes, resident_mebibytes
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.distance.candidate_ranking import CandidateRanking, RankedCandidate
from nearkin.distance.feature_scores import (
    FeatureScores,
    feature_scores,
    jackknife_error,
    require_feature_measure,
)
from nearkin.distance.measure import Measure
from nearkin.distance.questions import DEFAULT_QUESTION, combined, question_named
from nearkin.distance.registry import measure_named
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.store.blob_cache import BlobCache
from nearkin.store.records import TaskRecord
from nearkin.tasks.rows import subset_index
from nearkin.tasks.task import Task
from nearkin.zoo.model_candidates import Candidate, CandidateList, read_candidates
from nearkin.zoo.preprocess import Preprocess
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.zoo import comparison, near
else:
    comparison, near = Lazy("nearkin.zoo.comparison"), Lazy("nearkin.zoo.near")

SAMPLE = 1000
PROBES = 2  # samples on which stored features of a module in memory are checked


@dataclass(frozen=True, eq=False)
class _Measured:
    """Scores of one candidate, with what they cost."""

    candidate: Candidate
    scores: FeatureScores
    num_features: int
    seconds: float
    mebibytes: float
    cached: bool


@operation
def rank(
    task: Task,
    candidates: CandidateList,
    sample: int = SAMPLE,
    *,
    question: str = DEFAULT_QUESTION,
    measure: str | None = None,
    zoo: SolvedTasks | None = None,
    preprocess: Preprocess | Mapping[str, object] | str | None = None,
    cache: BlobCache | None = None,
    fisher: bool = False,
) -> Work[CandidateRanking]:
    """Rank trained networks for a data set by their features, best first.

    Args:
        task: the target; only its training samples are used.
        candidates: modules, solved tasks, names of a zoo (`zoo:NAME`), model files, network strings, or `pixels` for
            the raw inputs; as a list, or by name.
        sample: number of training samples, drawn at random, the same for all candidates.
        question: `final` (accuracy after fine-tuning) or `speed` (loss in the first steps).
        measure: one measure of features instead of those of the question, such as `logme`.
        zoo: that holds candidates.
        preprocess: of modules in memory (default: inputs as the task has them).
        cache: of features (default: a folder in the user's cache).
        fisher: also compare candidates of one architecture, with tasks in the zoo, by Fisher information; this trains
            their network on the target.
    """
    start = now()
    require(sample >= 10, f"sample must be 10 or more, got {sample}")
    require(
        task.likelihood in ("categorical", "gaussian"),
        f"'{task.name}' is a {task.likelihood} task, expected classes or values; rank other data",
        MismatchError,
    )
    chosen_by = question_named(question)
    weights = (
        chosen_by.supported(task.likelihood, features_only=True)
        if measure is None
        else {measure_named(measure).name: 1.0}
    )
    measures = [measure_named(name) for name in weights]
    for chosen in measures:
        require_feature_measure(chosen)
    small, index = _small(task, sample)
    key = hashlib.sha256(f"{task.fingerprint()} {sample}".encode()).hexdigest()
    store = cache if cache is not None else feature_cache()
    listed = list(read_candidates(candidates, task, zoo, Preprocess.of(preprocess)))
    measured, refused = yield from _measure_all(listed, small, measures, store, key)
    if not measured:
        name, reason = next(iter(refused.items()))
        raise MismatchError(f"no candidate can be ranked for '{task.name}'; '{name}': {reason}")
    distances: Mapping[str, float] = {}
    if fisher and zoo is not None:
        distances = yield from _fisher_distances(zoo, task, [one.candidate for one in measured])
    name = question if measure is None else measures[0].name
    ranked = _ranked(measured, weights, distances)
    return CandidateRanking(task.name, name, tuple(ranked), refused, len(index), now() - start)


def feature_cache() -> BlobCache:
    """Features in the cache folder of the user, by a hash of the network and of the samples."""
    return BlobCache.of_user("features", by_content=False)


def _small(task: Task, sample: int) -> tuple[Task, Tensor]:
    """The task with a fixed random part of its training samples, so that few images are converted for a network."""
    index = subset_index(len(task.train), sample)
    train = task.train.chosen(index)
    if task.likelihood == "categorical":
        counts = torch.bincount(train.labels(), minlength=len(task.classes)).sort().values
        present = int((counts > 0).sum())
        require(
            present == len(task.classes) and int(counts[-2]) >= 2,
            f"{len(index)} samples of '{task.name}' hold {present} of its {len(task.classes)} classes, expected all, "
            f"and two of them twice or more; use a larger sample",
            DataError,
        )
    return replace(task, train=train, test=task.test.chosen(torch.arange(1))), index


def _measure_all(
    candidates: Sequence[Candidate], task: Task, measures: Sequence[Measure], store: BlobCache, key: str
) -> Work[tuple[list[_Measured], dict[str, str]]]:
    """Scores of the candidates, one after the other, and why others were refused."""
    measured: list[_Measured] = []
    refused: dict[str, str] = {}
    gc.freeze()  # so that collecting the networks that were ranked does not visit everything else
    try:
        for number, candidate in enumerate(candidates, 1):
            try:
                measured.append((yield from _measure(candidate, task, measures, store, key)))
            except NearkinError as error:
                refused[candidate.name] = str(error)
            yield Progress("candidates", number, len(candidates))
    finally:
        gc.unfreeze()
    return measured, refused


def _measure(
    candidate: Candidate, task: Task, measures: Sequence[Measure], store: BlobCache, key: str
) -> Work[_Measured]:
    """Features of a candidate, from the cache if they are there, and their scores."""
    start = now()
    gc.collect()
    before = _start_peak()
    seen = candidate.inputs()(task)  # before the network is loaded: inputs that do not fit are refused
    name = hashlib.sha256(f"{candidate.digest()} {key}".encode()).hexdigest()
    features = known = _read(store, name)
    if known is not None and candidate.in_memory and not _same(known, _features(candidate, seen, PROBES)):
        features = known = None  # the code of the module has changed, its weights have not
    if features is None:
        features = _features(candidate, seen)
        store.write(name, State({"features": features}).to_file())
    y = task.train.target_scaling(task.train.labels())
    scores = yield from feature_scores(measures, features, y, task)
    memory = max(0.0, peak_mebibytes() - before)
    return _Measured(candidate, scores, features.shape[1], now() - start, memory, known is not None)


def _same(known: Tensor, probe: Tensor) -> bool:
    first = known[: len(probe)]
    return first.shape == probe.shape and bool(torch.allclose(first, probe, rtol=1e-3, atol=1e-5))


def _start_peak() -> float:
    """Forget the largest memory of the process so far, where the system can; returns the memory in use."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return resident_mebibytes()


def _read(store: BlobCache, name: str) -> Tensor | None:
    data = store.read(name)
    if data is not None:
        with suppress(DataError):  # damaged: the features are computed again
            return State.from_bytes(data).tensors.get("features")
    return None


def _features(candidate: Candidate, seen: Task, count: int | None = None) -> Tensor:
    """Inputs of the head `[N, D]` for all samples, or the first ones; for raw inputs, these."""
    model, x = candidate.load(), (seen.train.all() if count is None else seen.train.first(count)).x
    if isinstance(model, nn.Flatten):
        return x.flatten(1).float()
    features = SourceOnTarget(model, seen, seen.form, len(seen.train)).features_of(x)
    require(
        len(features) == len(x),
        f"'{candidate.name}' gives {len(features)} rows of features for {len(x)} samples; pool its outputs: adopt it "
        f"with pool='mean'",
        MismatchError,
    )
    return features.float()


def _fisher_distances(zoo: SolvedTasks, task: Task, candidates: Sequence[Candidate]) -> Work[dict[str, float]]:
    """Fréchet distances of candidates that share an architecture with another one."""
    probes = [candidate.probe for candidate in candidates]
    alike = [c for c in candidates if c.probe is not None and probes.count(c.probe) > 1 and c.name in zoo]
    records: list[TaskRecord] = [zoo.record(candidate.name) for candidate in alike]
    if not records:
        return {}
    how = comparison.Comparison(measure="frechet")
    ranking = yield from near.rank_sources(zoo, task, how, records)
    return {kin.name: kin.distance for kin in ranking}


def _ranked(
    measured: Sequence[_Measured], weights: Mapping[str, float], distances: Mapping[str, float]
) -> list[RankedCandidate]:
    """Candidates by their combined scores; the combination is repeated without each group of samples."""
    names = list(weights)
    values = combined({name: [one.scores.values[name] for one in measured] for name in names}, weights)
    groups = range(len(measured[0].scores.without_group[names[0]]))
    repeated = [
        combined({name: [one.scores.without_group[name][group] for one in measured] for name in names}, weights)
        for group in groups
    ]
    top = 0.0 if len(names) == 1 else 1.0  # mean ranks are between 0 for the best and 1
    ranked = [
        RankedCandidate(
            name=one.candidate.name,
            score=top - values[i],
            std=jackknife_error([group[i] for group in repeated]),
            measures={name: -value for name, value in one.scores.values.items()},
            errors={name: jackknife_error(one.scores.without_group[name]) for name in names},
            num_features=one.num_features,
            seconds=one.seconds,
            mebibytes=one.mebibytes,
            cached=one.cached,
            label=one.candidate.label,
            parameters=one.candidate.parameters,
            source_metric=one.candidate.metric,
            licence=one.candidate.licence,
            random=_random(one.candidate.name),
            fisher=distances.get(one.candidate.name),
        )
        for i, one in enumerate(measured)
    ]
    first = names[0]
    return sorted(ranked, key=lambda one: (-one.score, -one.measures[first], one.name))


def _random(name: str) -> float:
    """A number in [0, 1) that depends on the name only."""
    return derived_seed(0, "random candidate", name) / 2**63 % 1
