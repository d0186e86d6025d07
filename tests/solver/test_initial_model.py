"""The network from which a contender is trained."""

from dataclasses import replace

import torch

import nearkin as nk
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import fit
from nearkin.solver.contenders import Contender, _initial_model


def test_fine_tuning_starts_alike_however_large_the_features_of_the_source_are() -> None:
    task = nk.task("digits?classes=0,1,2&rest=drop&limit=60")
    done = fit(nk.build("mlp?hidden=8", task.input_shape, 3, 0), task, Recipe(steps=2))
    larger = {name: 100 * value if "body" in name else value for name, value in done.params.items()}
    target, starts = nk.task("digits?parity&limit=60"), []
    for trained in (done, replace(done, params=larger)):
        source = Solved("three", "mlp?hidden=8", task.facts(), 0, (trained,))
        contender = Contender(name="finetune", title="", kind="kin", task=target, source=source)
        starts.append(_initial_model(contender, "mlp?hidden=8")(target.train.first(20).x))
    assert starts[0].shape == (20, 2)
    assert torch.allclose(*starts, atol=1e-5)
