"""Closed-form transfer as a contender: kept, exported and trained once more as the others are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import MismatchError
from nearkin.core.events import finish
from nearkin.nets.functional import load
from nearkin.nets.registry import build
from nearkin.nets.solved import Solved
from nearkin.report.reproduction import usage
from nearkin.solver.closed import MOST, fit_closed_form
from nearkin.solver.plan import Plan
from nearkin.tasks.derive import limited
from nearkin.tasks.papers.sinusoids import Sinusoids
from nearkin.zoo.export import exported


def kin(kin_zoo: nk.Zoo) -> Solved:
    return kin_zoo.solved("even")


def test_a_fit_is_its_string_and_tensors(kin_zoo: nk.Zoo, target: nk.Task) -> None:
    network, fit, settings = finish(fit_closed_form(kin(kin_zoo), target))
    assert fit.scores.metric > 0.8
    assert settings["samples"] == 200
    model = build(network, target.input_shape, target.num_outputs, seed=0)
    load(model, fit.params, fit.buffers)
    x, y = target.test.all()
    assert float((model(x).argmax(1) == y).double().mean()) == fit.scores.metric


def test_fixed_settings_are_kept_and_more_data_is_learned_from(kin_zoo: nk.Zoo, target: nk.Task) -> None:
    _, _, first = finish(fit_closed_form(kin(kin_zoo), limited(target, 120)))
    _, _, later = finish(fit_closed_form(kin(kin_zoo), target, fixed=first))
    assert later == pytest.approx({**first, "samples": 200})
    part = {**first, "samples": 40}
    assert finish(fit_closed_form(kin(kin_zoo), target, fixed=part))[2]["samples"] == 80


def test_little_time_means_few_samples(kin_zoo: nk.Zoo, target: nk.Task) -> None:
    hurried, easy = (finish(fit_closed_form(kin(kin_zoo), target, seconds=s))[2]["samples"] for s in (1e-6, 1e6))
    assert (hurried, easy) == (20, 200)
    assert easy <= MOST


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_values(tmp_path: Path, likelihood: str) -> None:
    curves = [Sinusoids(points=60).draw(seed, 0)[0] for seed in (0, 1)]
    with nk.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(curves[0], "mlp?hidden=32", trials=1)
        source = zoo.solved(curves[0].name)
    target = curves[1] if likelihood == "gaussian" else replace(curves[1], likelihood=likelihood)
    network, fit, settings = finish(fit_closed_form(source, target))
    assert fit.scores.metric > 0
    assert settings["mean"] in ("constant", "network")
    again = finish(fit_closed_form(source, target, fixed=settings))
    assert again[0] == network
    assert again[1].scores.metric == pytest.approx(fit.scores.metric, abs=1e-6)


def test_it_can_be_the_answer(kin_zoo: nk.Zoo, target: nk.Task, quick: Plan, tmp_path: Path) -> None:
    found = nk.solve(target, kin_zoo, quick.budget, only=("transfer",), join=False)
    assert found.chosen == "transfer"
    assert found.to_dict()["transfer"]["name"] == "transfer"
    assert found.metric > 0.8
    file = tmp_path / "answer.safetensors"
    found.save(file)
    again, x = nk.Solution.load(file), target.test.inputs.take(torch.arange(5))
    assert torch.equal(again.predict(x).mean, found.predict(x).mean)
    with pytest.raises(MismatchError, match="--to torch"):
        exported(found.solved, "onnx", tmp_path / "net.onnx")
    assert exported(found.solved, "torch", tmp_path / "net.safetensors")["error"] == 0.0
    assert "onnx" not in usage(found, "answer.safetensors")[1]
