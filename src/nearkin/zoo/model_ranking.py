"""Rank trained networks for a data set: which one should be fine-tuned?

Networks of different architectures have different weights, so they are compared by their features: the inputs of the
head, for some training samples of the target. The networks are loaded one after the other, so that memory is needed for
one at a time, and features are stored by content, so that they are computed once. The order of the candidates does not
matter.
"""

import gc
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.errors import DataError, MismatchError, NearkinError, require
from nearkin.core.events import Caution, Note, Progress, Work, operation
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
from nearkin.tasks.task import Task
from nearkin.zoo.model_candidates import (
    Candidate,
    CandidateFacts,
    CandidateList,
    CandidateReader,
    candidate_readers,
)
from nearkin.zoo.preprocess import Preprocess
from nearkin.zoo.ranking_samples import inputs_digest, ranking_sample
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.zoo import comparison, near
else:
    comparison, near = Lazy("nearkin.zoo.comparison"), Lazy("nearkin.zoo.near")

SAMPLE = 1000
PROBES = 2  # samples on which stored features of a module in memory are checked


@dataclass(frozen=True, eq=False)
class _Measured:
    """Scores of one candidate, with what they cost; it holds no network."""

    name: str
    facts: CandidateFacts
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
            the raw inputs; one, a list, or several by name. Those of equal names are numbered by their weights.
        sample: number of training samples, the same for all candidates: two of each class, others drawn at random.
        question: `final` (accuracy after fine-tuning) or `speed` (loss in the first steps).
        measure: one measure of features instead of those of the question, such as `logme`.
        zoo: that holds candidates.
        preprocess: of modules in memory (default: inputs as the task has them).
        cache: of features (default: a folder in the user's cache).
        fisher: also compare candidates of one architecture, with tasks in the zoo, by Fisher information; this trains
            their network on the target.

    A candidate that cannot be read or used, such as a damaged file, is left out: `refused` has its name and the reason.
    An unknown name is an error, before anything is read.
    """
    start = now()
    require(isinstance(task, Task), f"the target is a {type(task).__name__}, expected a task")
    whole = isinstance(sample, SupportsIndex)  # also an integer of numpy
    require(whole and sample >= 10, f"sample must be a whole number, 10 or more, got {sample!r}")
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
    small = ranking_sample(task, int(sample))
    readers = candidate_readers(candidates, task, zoo, Preprocess.of(preprocess))
    store = cache if cache is not None else feature_cache()
    measured, refused = yield from _measure_all(readers, small, measures, store)
    if not measured:
        name, reason = next(iter(refused.items()))
        raise MismatchError(f"no candidate can be ranked for '{task.name}'; '{name}': {reason}")
    distances: Mapping[str, float] = {}
    if fisher:
        distances = yield from _fisher_distances(zoo, task, [one.facts for one in measured])
    name = question if measure is None else measures[0].name
    ranked = _ranked(measured, weights, distances)
    return CandidateRanking(task.name, name, tuple(ranked), refused, len(small.train), now() - start)


def feature_cache() -> BlobCache:
    """Features in the cache folder of the user, by a hash of the network and of the samples."""
    return BlobCache.of_user("features", by_content=False)


def _measure_all(
    readers: Mapping[str, CandidateReader], task: Task, measures: Sequence[Measure], store: BlobCache
) -> Work[tuple[list[_Measured], dict[str, str]]]:
    """Scores of the candidates, one after the other, and why others were refused."""
    measured: list[_Measured] = []
    refused: dict[str, str] = {}
    samples = inputs_digest(task)
    gc.collect()
    gc.freeze()  # so that collecting the networks that were ranked does not visit everything else
    try:
        for number, (name, read) in enumerate(readers.items(), 1):
            try:
                measured.append((yield from _measure(name, read, task, measures, store, samples)))
            except NearkinError as error:
                refused[name] = str(error)
            yield Progress("candidates", number, len(readers))
    finally:
        gc.unfreeze()
    return measured, refused


def _measure(
    name: str, read: CandidateReader, task: Task, measures: Sequence[Measure], store: BlobCache, samples: str
) -> Work[_Measured]:
    """Features of a candidate, from the cache if they are there, and their scores."""
    start = now()
    gc.collect()
    before = _start_peak()
    candidate = read()
    seen = candidate.inputs(task)  # before a stored network is loaded: inputs that do not fit are refused
    key = hashlib.sha256(f"{candidate.digest} {samples} {seen.train.scaling.to_dict()}".encode()).hexdigest()
    features = known = _read(store, key)
    if known is not None and candidate.by_code and not _same(known, _features(candidate, seen, PROBES)):
        features = known = None  # the code of the module has changed, its weights have not
    if features is None:
        features = _features(candidate, seen)
        store.write(key, State({"features": features}).to_file())
    y = task.train.target_scaling(task.train.labels())
    scores = yield from feature_scores(measures, features, y, task)
    memory = max(0.0, peak_mebibytes() - before)
    return _Measured(name, candidate.facts, scores, features.shape[1], now() - start, memory, known is not None)


def _same(known: Tensor, probe: Tensor) -> bool:
    first = known[: len(probe)]
    return first.shape == probe.shape and bool(torch.allclose(first, probe, rtol=1e-3, atol=1e-5))


def _start_peak() -> float:
    """Forget the largest memory of the process so far, where the system can; returns the memory in use."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return resident_mebibytes()


def _read(store: BlobCache, key: str) -> Tensor | None:
    data = store.read(key)
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
        f"the network gives {len(features)} rows of features for {len(x)} samples; pool its outputs: adopt it "
        f"with pool='mean'",
        MismatchError,
    )
    return features.float()


def _fisher_distances(
    zoo: SolvedTasks | None, task: Task, candidates: Sequence[CandidateFacts]
) -> Work[dict[str, float]]:
    """Fréchet distances of networks in the zoo that share an architecture with another one, by their names in it."""
    records = _comparable(zoo, candidates)
    if zoo is None or not records:
        yield Caution("no Fisher distances: they need two candidates with tasks in a zoo that share an architecture")
        return {}
    try:
        ranking = yield from near.rank_sources(zoo, task, comparison.Comparison(measure="frechet"), records)
    except NearkinError as error:
        yield Caution(f"no Fisher distances: {error}")
        return {}
    for name, reason in ranking.refused.items():
        yield Caution(f"no Fisher distance of '{name}': {reason}")
    yield Note(f"Fisher distances in the form {' and '.join(sorted({kin.form for kin in ranking}))}")
    return {kin.name: kin.distance for kin in ranking}


def _comparable(zoo: SolvedTasks | None, candidates: Sequence[CandidateFacts]) -> list[TaskRecord]:
    """Rows of candidates that are compared with the same network of the target as another one.

    Networks of one architecture that started from different seeds are not, unless the start of one of them is unknown.
    """
    stored = {facts.stored for facts in candidates if facts.stored}
    records = [] if zoo is None else [record for record in map(zoo.record, sorted(stored)) if record.trials]
    unknown = comparison.unknown_starts(records)

    def architecture(record: TaskRecord) -> tuple[Any, ...]:
        known = (record.network, record.input_shape)
        return known if known in unknown else (*known, record.seed)

    counts = Counter(map(architecture, records))
    return [record for record in records if counts[architecture(record)] > 1]


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
            name=one.name,
            score=top - values[i],
            std=jackknife_error([group[i] for group in repeated]),
            measures={name: -value for name, value in one.scores.values.items()},
            errors={name: jackknife_error(one.scores.without_group[name]) for name in names},
            num_features=one.num_features,
            seconds=one.seconds,
            mebibytes=one.mebibytes,
            cached=one.cached,
            label=one.facts.label,
            parameters=one.facts.parameters,
            source_metric=one.facts.metric,
            licence=one.facts.licence,
            random=_random(one.name),
            fisher=distances.get(one.facts.stored),
        )
        for i, one in enumerate(measured)
    ]
    first = names[0]
    return sorted(ranked, key=lambda one: (-one.score, -one.measures[first], one.name))


def _random(name: str) -> float:
    """A number in [0, 1) that depends on the name only."""
    return derived_seed(0, "random candidate", name) / 2**63 % 1
