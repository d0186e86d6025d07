"""Training that is stopped in the middle and continues to the same bits.

python examples/02_stop_and_go_on.py
"""

import tempfile
from pathlib import Path

import nearkin as nk
from nearkin.core.events import Checkpoint, Work, finish
from nearkin.core.state import State
from nearkin.run.checkpoints import FolderCheckpoints, resume


def main() -> None:
    task = nk.task("digits?limit=400")
    recipe = nk.Recipe(epochs=5)
    folder = FolderCheckpoints(Path(tempfile.mkdtemp()))

    def training(start: State | None) -> Work[nk.Fit]:
        model = nk.build("lenet", task.input_shape, task.num_outputs, seed=0)
        return nk.fit.work(model, task, recipe, resume=start)

    def stop_at_once(event: object) -> None:
        if isinstance(event, Checkpoint):
            raise KeyboardInterrupt

    try:
        finish(resume(folder, "training", training), stop_at_once)
    except KeyboardInterrupt:
        print("stopped; stored:", folder.names())
    again = finish(resume(folder, "training", training))  # the same call continues
    whole = finish(training(None))
    same = all(bool((whole.params[name] == again.params[name]).all()) for name in whole.params)
    print(f"accuracy {again.scores.metric:.3f}; the same bits as without the stop: {same}")
    assert same


if __name__ == "__main__":
    main()
