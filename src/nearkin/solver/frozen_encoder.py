"""Adopted networks as contenders: their features, computed once, with a linear head; and the same network fine-tuned.

The network is not changed, so that a fit costs one forward pass for each sample and a logistic (ridge) regression. The
fitted weights become the head of the network, and the result is a network like all others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

from nearkin.core.clock import now
from nearkin.core.errors import MismatchError, NearkinError, require
from nearkin.core.events import Caution, Note, Progress, Work
from nearkin.core.state import State
from nearkin.nets.adopted_spec import ADOPTED_FACTS, network_label
from nearkin.nets.forward_passes import fast_inputs, fields_without_padding, in_passes, pass_size
from nearkin.nets.functional import outputs_of
from nearkin.nets.heads import features, head_name
from nearkin.nets.solved import Solved
from nearkin.solver.allocation import pretrained_recipe
from nearkin.solver.contenders import Contender
from nearkin.solver.contest import Contest
from nearkin.solver.encoder_head import model_facts, with_head_weights
from nearkin.solver.overlap import shares_samples
from nearkin.solver.simple.data import evenly
from nearkin.solver.sizing import BACKWARD
from nearkin.solver.svm_checks import check_rows, lead_over_pixels
from nearkin.store.records import TaskRecord
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.rows import Values
from nearkin.tasks.task import Task
from nearkin.zoo.model_ranking import rank
from nearkin.zoo.zoo import Zoo

FROZEN, TUNED = "encoder", "encoder-finetune"
SHARE = 0.3  # of the time that is left, for the features of training and validation samples
TEST_SHARE = 0.5  # of it, for the predictions of the test samples
RANKED_SHARE = 0.1  # of it, for comparing several networks
LEAST_RANKED, MOST_RANKED = 50, 500  # samples of this comparison
PASS, TEXTS = 32, 256  # samples, and texts, whose inputs are prepared together
LEAST_TRAINED = 5  # samples for each class or value
LEAST_COMPARED = 50  # samples on which features are compared with pixels
LEAST_TUNED = 40  # steps for which there has to be time


class _Chosen(TypedDict):
    """Name of the chosen network, empty if there is none, and lines for the user."""

    name: str
    notes: list[str]


class _FeatureFacts(TypedDict):
    """Seconds of the network for one sample, 0 without a time limit; and why its fine-tuning gets most of the time."""

    seconds: float
    favoured: str


def encoder_contenders(contest: Contest, zoo: Zoo, flip: bool) -> Work[list[Contender]]:
    """The adopted network that suits the target best: with a new head on its features, and fine-tuned.

    Args:
        contest: the run.
        zoo: that has the networks.
        flip: whether images are flipped at random.
    """
    records = [record for record in zoo.models() if ADOPTED_FACTS in record.facts and record.name != contest.task.name]
    wanted = [name for name in (FROZEN, TUNED) if contest.plan.takes(name)]
    if not records or contest.plan.hurried or not wanted:
        return []
    known = [[record.name, record.fingerprint, record.network] for record in records]
    inputs = {"data": contest.learn.fingerprint(), "zoo": known, "seed": contest.plan.seed}
    done = yield from contest.stages.stage(
        "adopted networks", inputs, lambda _: _chosen(contest, zoo, records), key="encoders"
    )
    chosen = done.read(_Chosen)
    for line in chosen["notes"]:
        yield Note(line)
    if not chosen["name"]:
        return []
    encoder, contenders, favoured = zoo.solved(chosen["name"]), [], ""
    try:
        if FROZEN in wanted:
            frozen, favoured = yield from _frozen(contest, encoder)
            contenders.append(frozen)
    except NearkinError as error:
        yield Caution(f"'{encoder.name}' with a new head was left out: {error}")
    if TUNED in wanted:
        contenders.append(_tuned(contest, encoder, flip, favoured))
    return contenders


def _chosen(contest: Contest, zoo: Zoo, records: Sequence[TaskRecord]) -> Work[State]:
    """The network with the best scores of features for some samples; those that cannot be used are left out."""
    notes: list[str] = []
    usable = list(_usable(contest, zoo, records, notes))
    if len(usable) > 1:
        try:
            sample = _ranked_samples(contest, zoo, usable)
            names = [f"zoo:{record.name}" for record in usable]
            ranking = yield from rank.work(contest.learn, names, sample, zoo=zoo)
            usable = [zoo.record(ranking.best.name)]
            others = ", ".join(f"'{one.name}'" for one in ranking.candidates[1:])
            notes.append(f"'{ranking.best.name}' has the best features for {ranking.samples} samples, before {others}")
        except NearkinError as error:
            notes.append(f"the adopted networks could not be ranked, the first one is used: {error}")
    if usable and not usable[0].trials:
        notes.append(f"'{usable[0].name}' was trained elsewhere; whether on samples of this task is not known")
    return State({}, {"name": usable[0].name if usable else "", "notes": notes})


def _usable(contest: Contest, zoo: Zoo, records: Sequence[TaskRecord], notes: list[str]) -> Iterator[TaskRecord]:
    """Networks that read the inputs of the target and did not learn from its validation or test samples."""
    for record in records:
        try:
            _seen(zoo.network_inputs(record), contest.task, _first(contest.task, 2))
        except NearkinError:
            continue
        if record.trials and shares_samples(zoo, contest.task, contest.learn, record.name):
            notes.append(f"'{record.name}' learned from validation or test samples of this task, and is not used")
            continue
        yield record


def _seen(inputs: NetworkInputs, task: Task, examples: Examples) -> Tensor:
    """Inputs of some examples of a task as a network reads them."""
    alone = replace(examples, targets=Values(torch.zeros(len(examples), 1)), target_scaling=Scaling(), weights=None)
    values = Task(task.name, alone, alone, "gaussian", ("y0",), task.input_shape, preprocessing=task.preprocessing)
    return inputs(values).train.all().x


def _inputs(encoder: Solved, task: Task) -> NetworkInputs:
    """Inputs of a network, with the scaling of the task if it has none of its own."""
    inputs = encoder.inputs
    if inputs.tokenizer is not None or inputs.mean is not None:
        return inputs
    scaling = inputs(task).train.scaling
    if scaling.mean is None or scaling.std is None:
        return inputs
    return replace(inputs, mean=tuple(scaling.mean.tolist()), std=tuple(scaling.std.tolist()))


def _first(task: Task, count: int) -> Examples:
    """The first training samples."""
    return task.train.chosen(torch.arange(min(count, len(task.train))))


def _ranked_samples(contest: Contest, zoo: Zoo, records: Sequence[TaskRecord]) -> int:
    """Number of samples by which networks are ranked."""
    most = min(MOST_RANKED, len(contest.learn.train))
    if contest.plan.seconds is None:
        return most
    each = sum(_pass_seconds(zoo.solved(record.name), contest.task) for record in records)
    return max(min(LEAST_RANKED, most), min(most, int(RANKED_SHARE * contest.left / max(each, 1e-9))))


def _pass_seconds(encoder: Solved, task: Task) -> float:
    """Seconds of a forward pass for one sample; the first pass is not timed."""
    x, model = _seen(_inputs(encoder, task), task, _first(task, PASS)), encoder.model()
    x = fast_inputs(model, x[: pass_size(x)])
    outputs_of(model, x)
    begun = now()
    outputs_of(model, x)
    return (now() - begun) / len(x)


def _frozen(contest: Contest, encoder: Solved) -> Work[tuple[Contender, str]]:
    """A contender with the features of a network as inputs, and why fine-tuning it deserves most of the time."""
    inputs = {"data": contest.task.fingerprint(), "encoder": [encoder.name, encoder.network],
              "split": contest.learn.fingerprint(), "seconds": contest.plan.seconds}  # fmt: skip
    stage = f"features of '{encoder.name}'"
    done = yield from contest.stages.stage(stage, inputs, lambda _: _feature_state(contest, encoder), key="features")
    rows, train, test = done.tensors["rows"], done.tensors["train"], done.tensors.get("test")
    known = _with_features(contest.task.train.chosen(rows), train)
    position = torch.full((len(contest.task.train),), -1)
    position[rows] = torch.arange(len(rows))
    learned, held_out = (position[index] for index in contest.splits.parts[0])
    validation = known.chosen(held_out)
    whole = replace(
        contest.task, train=known, test=validation if test is None else _with_features(contest.task.test, test),
        input_shape=(train.shape[1],), source="", preprocessing={}, notes=(),
    )  # fmt: skip
    task = replace(whole, test=validation)
    if not contest.cross_validated:
        task = replace(task, train=known.chosen(learned[learned >= 0]))
    facts = done.read(_FeatureFacts)
    contender = Contender(
        name=FROZEN, title=f"{network_label(encoder.network)} of '{encoder.name}', frozen, with a new head",
        kind="frozen", task=task, whole=whole, encoder=encoder, seed=contest.plan.seed,
        cross_validated=contest.cross_validated, metric=contest.plan.metric,
        extra={"settings": {"encoder": encoder.name}}, encoder_seconds=facts["seconds"],
    )  # fmt: skip
    return contender, facts["favoured"]


def _with_features(examples: Examples, features: Tensor) -> Examples:
    """Examples with features as inputs."""
    return replace(examples, inputs=Values(features), scaling=Scaling())


def _feature_state(contest: Contest, encoder: Solved) -> Work[State]:
    """Features of the training and validation samples, of fewer ones if time is short.

    Without a time limit those of the test samples too, as every contender is then tested. With one, only the selected
    model is.
    """
    task, limited = contest.task, contest.plan.focused
    rows, each = torch.arange(len(task.train)), 0.0
    if limited:
        each = max(_pass_seconds(encoder, task), 1e-9)
        rows = yield from _affordable_rows(contest, encoder.name, each)
    model, reads = encoder.model(), _inputs(encoder, task)
    first = _seen(reads, task, _first(task, 2))
    head = head_name(model, first[:1])
    _check_head(encoder, model, first, head)
    tables: dict[str, Tensor] = {}
    groups = {"train": task.train.chosen(rows), **({} if limited else {"test": task.test})}
    total = sum(map(len, groups.values()))
    for name, examples in groups.items():
        values: list[Tensor] = []
        for index in torch.arange(len(examples)).split(TEXTS if fields_without_padding(model) else PASS):
            x = _seen(reads, task, examples.chosen(index))
            with torch.no_grad():
                values.append(in_passes(model, x, partial(features, model, head=head)).float())
            yield Progress(
                f"features of '{encoder.name}'", sum(map(len, values)) + sum(map(len, tables.values())), total
            )
        tables[name] = torch.cat(values)
    require(
        all(bool(values.isfinite().all()) for values in tables.values()),
        "some of its features are not finite; check its weights and its preprocessing",
        MismatchError,
    )
    favoured = _why_favoured(contest, encoder.name, each, rows, tables["train"])
    return State({"rows": rows, **tables}, {"seconds": each, "favoured": favoured})


def _why_favoured(contest: Contest, name: str, each: float, rows: Tensor, values: Tensor) -> str:
    """Why fine-tuning a network deserves most of the time, empty if it does not: an SVM of its features beats pixels.

    Args:
        contest: the run.
        name: of the network.
        each: its seconds for one sample.
        rows: positions of training and validation samples.
        values: their features; only training samples are compared.
    """
    step = BACKWARD * each * PASS
    if not contest.images or not contest.plan.focused or contest.task.likelihood != "categorical":
        return ""
    known = torch.nonzero(torch.isin(rows, contest.splits.parts[0][0])).flatten()
    known = known[check_rows(len(known), contest.plan.seed)]
    if len(known) < LEAST_COMPARED or LEAST_TUNED * step > contest.left / 2:
        return ""
    images, labels = contest.task.train.take(rows[known])
    ours, theirs, clearly = lead_over_pixels(values[known], images, labels, contest.plan.seed)
    scores = f"accuracy {ours:.2f} and {theirs:.2f} by a support vector machine"
    why = f"the features of '{name}' suit the images better than their pixels ({scores})"
    return f"{why}, so its fine-tuning gets most of the time" if clearly else ""


def _affordable_rows(contest: Contest, name: str, each: float) -> Work[Tensor]:
    """Positions of the training and validation samples for whose features there is time; `each` is that of one.

    There must also be time to predict the test samples once.
    """
    learned, held_out = contest.splits.parts[0]
    task, left = contest.task, contest.left
    least = len(learned) if contest.cross_validated else min(len(learned), LEAST_TRAINED * len(task.classes))
    for samples, share in ((least + len(held_out), SHARE), (len(task.test), TEST_SHARE)):
        require(
            each * samples <= share * left,
            f"its features of {samples:,} samples would take {each * samples:.0f} s, more than {share:.0%} of the "
            f"{left:.0f} s that are left; give more time",
        )
    affordable = int(SHARE * left / each) - len(held_out)
    if affordable >= len(learned):
        return torch.arange(len(task.train))
    labels = task.train.labels()[learned] if task.likelihood == "categorical" else None
    kept = evenly(labels, len(learned), affordable, contest.plan.seed)
    yield Note(f"the features of '{name}' are those of {affordable:,} of {len(learned):,} samples")
    return torch.cat([learned[kept], held_out]).sort().values


def _check_head(encoder: Solved, model: torch.nn.Module, x: Tensor, head: str) -> None:
    """Refuse a network that changes the outputs of its head, such as by a softmax."""
    with torch.no_grad():
        inputs = features(model, x, head)
    weight = torch.linspace(-1, 1, 2 * inputs.shape[1]).view(2, -1)
    bias = torch.tensor([0.5, -0.5])
    expected = (inputs @ weight.T + bias).log_softmax(1)
    outputs = outputs_of(with_head_weights(encoder, weight, bias), x).log_softmax(1)
    require(
        len(inputs) == len(x) and torch.allclose(outputs, expected, rtol=1e-3, atol=1e-4),
        "it changes the outputs of its head, so that a new head cannot be fitted to its features; adopt it with "
        "head='new'",
        MismatchError,
    )


def _tuned(contest: Contest, encoder: Solved, flip: bool, favoured: str) -> Contender:
    """A contender that trains all weights of the network from a head that is fitted to its features."""
    whole = encoder.inputs(contest.task)
    learn = contest.splits.task(whole)
    recipe = pretrained_recipe(learn, flip, **contest.plan.options())
    return Contender(
        name=TUNED, title=f"{network_label(encoder.network)} of '{encoder.name}', fine-tuned", kind="tuned", task=learn,
        whole=whole, networks=(encoder.network,), recipe=recipe, source=encoder, pretrained=True, favoured=favoured,
        seed=contest.plan.seed, model_facts=model_facts(encoder, contest.task),
        extra={"settings": {"encoder": encoder.name}},
    )  # fmt: skip
