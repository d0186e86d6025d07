"""Training that is stopped in the middle and goes on to the same bits.

python examples/02_stop_and_go_on.py
"""

import tempfile
from pathlib import Path

from torch import nn

import nearkin as nk
from nearkin.core.events import Checkpoint, finish, kept
from nearkin.core.state import State
from nearkin.nets.training_loop import fit


def main() -> None:
    task = nk.task("digits?limit=400")
    recipe = nk.Recipe(epochs=5)
    file = Path(tempfile.mkdtemp()) / "half.safetensors"

    def fresh() -> nn.Module:
        return nk.build("lenet", task.input_shape, task.num_outputs, seed=0)

    def stop_at_once(event: object) -> None:
        if isinstance(event, Checkpoint):
            raise KeyboardInterrupt

    try:
        finish(kept(fit.work(fresh(), task, recipe), file), stop_at_once)
    except KeyboardInterrupt:
        print(f"stopped after step {State.load(file).facts['done']}")
    whole = nk.fit(fresh(), task, recipe)
    again = fit(fresh(), task, recipe, resume=State.load(file))
    same = all(bool((whole.params[name] == again.params[name]).all()) for name in whole.params)
    print(f"accuracy {again.scores.metric:.3f}; the same bits as without the stop: {same}")
    assert same


if __name__ == "__main__":
    main()
