"""Predictions and scores of a trained model on raw data."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nearkin.nets.evaluate import Scores
from nearkin.nets.forward_passes import fast_inputs, fields_without_padding, in_passes, pass_size
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.solved import Solved
from nearkin.solver.quality import Quality, class_quality, value_quality, with_metric
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.likelihood import Gaussian, likelihood
from nearkin.tasks.metrics import Metric
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.new_inputs import NewInputs
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.rows import Values
from nearkin.tasks.task import Task

PASS = 256  # inputs in one forward pass, fewer if they are large


def as_seen(solved: Solved, examples: Examples) -> Examples:
    """Examples in the input shape and with the scaling of a solved task's model."""
    facts, inputs = solved.facts, Examples(examples.inputs, Values(torch.zeros(len(examples), 1)))
    about = facts.get("preprocessing", {})
    task = Task(solved.name, inputs, inputs, "gaussian", ("y0",), examples.inputs.shape, preprocessing=about)
    if NETWORK_INPUTS in facts:
        one = replace(task, train=inputs.chosen(torch.arange(1)))  # only the test set is read
        return replace(
            solved.inputs(one).test, targets=examples.targets,
            target_scaling=Scaling.from_dict(facts["target_scaling"]),
        )  # fmt: skip
    return Examples(
        fitted_to(task, tuple(facts["input_shape"])).test.inputs,
        examples.targets,
        Scaling.from_dict(facts["scaling"]),
        Scaling.from_dict(facts["target_scaling"]),
    )


def predict_inputs(
    solved: Solved,
    inputs: NewInputs,
    temperature: float = 1.0,
    model: nn.Module | None = None,
    half_widths: Sequence[float] = (),
) -> Prediction:
    """Predictions of a solved task's model for new inputs, with the names of the inputs and intervals of values."""
    examples = Examples(inputs.rows, Values(torch.zeros(len(inputs.rows))))
    predicted = predictions(solved, examples, temperature, model)
    interval = None
    if predicted.probabilities is None and len(half_widths) == predicted.mean.shape[1]:
        width = torch.tensor(half_widths, dtype=predicted.mean.dtype)
        interval = (predicted.mean - width, predicted.mean + width)
    return replace(predicted, rows=inputs.names, interval=interval, notes=inputs.notes)


def predictions(solved: Solved, examples: Examples, temperature: float, model: nn.Module | None = None) -> Prediction:
    """Predictions of a solved task's model for raw inputs."""
    return _as_prediction(solved, _outputs(solved, examples, model), temperature)


def _outputs(solved: Solved, examples: Examples, model: nn.Module | None = None) -> Tensor:
    """Logits, or values in scaled units, of a solved task's model for raw inputs."""
    scaled, model = as_seen(solved, examples), solved.model() if model is None else model
    with evaluation_mode(model), torch.inference_mode():
        if fields_without_padding(model):
            x = scaled.scaling(scaled.inputs.take(torch.arange(len(scaled))))
            return in_passes(model, x, model).float().clone()
        size = min(PASS, pass_size(scaled.inputs.take(torch.arange(1)))) if len(scaled) else PASS
        batches = (scaled.inputs.take(index).contiguous() for index in torch.arange(len(scaled)).split(size))
        outputs = torch.cat([model(fast_inputs(model, scaled.scaling(x))).float() for x in batches])
    return outputs.clone()


def _as_prediction(solved: Solved, outputs: Tensor, temperature: float) -> Prediction:
    facts = solved.facts
    form, classes = likelihood(facts["likelihood"]), tuple(facts["classes"])
    if not isinstance(form, Gaussian):
        return Prediction(outputs, probabilities=(outputs / temperature).softmax(1), classes=classes)
    back = Scaling.from_dict(facts["target_scaling"])
    return Prediction(back.inverse(form.means(outputs).clone()), classes=classes)


def scores_on_test(task: Task, solved: Solved) -> Scores:
    """Metric and loss of a solved task's model on the test set."""
    return _scores(task, solved, _outputs(solved, task.test))


def _scores(task: Task, solved: Solved, outputs: Tensor) -> Scores:
    """Metric and loss on the test set; the only place where they are computed."""
    seen = as_seen(solved, task.test)
    targets = seen.target_scaling(seen.targets.take(torch.arange(len(seen))))
    metric = task.form.score(task.form.tally(outputs, targets))
    return Scores(metric, float(task.form.loss(outputs, targets)), len(targets))


def outputs_on(solved: Solved, examples: Examples, temperature: float = 1.0) -> Tensor:
    """Logits `[N, C]`, or values `[N, K]` in the units of the data, as a metric takes them."""
    predicted = predictions(solved, examples, temperature)
    return predicted.mean if predicted.probabilities is None else predicted.mean / temperature


def metric_on_test(task: Task, solved: Solved, metric: Metric) -> float:
    """A metric of a solved task's model on the test set."""
    if metric.name == task.form.metric:
        return scores_on_test(task, solved).metric
    return metric.compute(outputs_on(solved, task.test), task.test.labels())


def quality_on_test(
    task: Task, solved: Solved, temperature: float, metric: Metric | None = None
) -> tuple[Quality, Scores]:
    """Quality of a solved task's model on the test set (default: by the usual metric of its likelihood), and scores."""
    quality, scores = _usual_quality(task, solved, temperature)
    if metric is None or metric.name == quality.name:
        return quality, scores
    labels = task.train.labels()
    if metric.of_classes:
        shares = torch.bincount(labels, minlength=len(task.classes)) / len(labels)
        constant = shares.clamp_min(torch.finfo(shares.dtype).tiny).log()
    else:
        constant = labels.mean(0)
    outputs = outputs_on(solved, task.test, temperature)
    return with_metric(quality, metric, outputs, task.test.labels(), constant), scores


def _usual_quality(task: Task, solved: Solved, temperature: float) -> tuple[Quality, Scores]:
    """Quality by accuracy or R², and scores."""
    outputs = _outputs(solved, task.test)
    predicted, scores = _as_prediction(solved, outputs, temperature), _scores(task, solved, outputs)
    labels = task.test.labels()
    if predicted.probabilities is not None:
        quality = class_quality(
            predicted.probabilities, labels, task.classes, loss=scores.loss, guess=task.majority_baseline(),
            best_constant=task.best_constant(), predicted=predicted.labels,
        )  # fmt: skip
        return quality, scores
    scaling = Scaling.from_dict(solved.facts["target_scaling"])
    return value_quality(predicted.mean, labels, loss=scores.loss, metric=scores.metric, scaling=scaling), scores
