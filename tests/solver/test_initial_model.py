"""The network from which a contender is trained."""

from dataclasses import replace

import torch

import nearkin as nk
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import fit
from nearkin.solver.contenders import Contender, _initial_model


def test_adopted_networks_start_from_a_fitted_head_unless_their_training_is_resumed() -> None:
    task = nk.task("digits?limit=200")
    source = Solved("ten", "mlp?hidden=32", task.facts(), 0, (fit(nk.build("mlp?hidden=32", (1, 8, 8), 10, 0), task),))
    contender = Contender(name="encoder-finetune", title="", kind="tuned", task=task, source=source, pretrained=True)
    x, y = task.train.all()
    fitted, drawn = (_initial_model(contender, "mlp?hidden=32", resumed) for resumed in (False, True))
    assert (fitted(x).argmax(1) == y).double().mean() > 0.9
    assert (drawn(x).argmax(1) == y).double().mean() < 0.5


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
