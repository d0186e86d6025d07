"""Listeners that log the values of long work to TensorBoard and MLflow.

Both log the values of every `Progress` under `stage/name`, with `done` as the step.

```python
with tensorboard("runs/four") as listen:
    finish(run_search.work(searcher, budget), listen)
```
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nearkin.core.errors import optional
from nearkin.core.events import Event, Listener, Progress

Write = Callable[[str, float, int], None]
"""Writes a value: (name, value, step) → None."""


def value_listener(write: Write) -> Listener:
    """A listener that passes every value of every progress to `write`.

    >>> values = []
    >>> value_listener(lambda *value: values.append(value))(Progress("search, fuse", 3, 9, {"best": 0.5}))
    >>> values
    [('search, fuse/best', 0.5, 3)]
    """

    def listen(event: Event) -> None:
        if isinstance(event, Progress):
            for name, value in event.values.items():
                write(f"{event.stage}/{name}", float(value), event.done)

    return listen


@contextmanager
def tensorboard(folder: str) -> Iterator[Listener]:
    """A listener that writes event files for TensorBoard into a folder; needs the extra `track`.

    Args:
        folder: created if it does not exist; `tensorboard --logdir` shows it.
    """
    optional("tensorboard", "track", "writing for TensorBoard")
    from torch.utils.tensorboard import SummaryWriter  # torch imports it from the extra

    with SummaryWriter(folder) as writer:
        yield value_listener(lambda name, value, step: writer.add_scalar(name, value, step))


@contextmanager
def mlflow(uri: str, experiment: str = "nearkin", run: str | None = None) -> Iterator[Listener]:
    """A listener that logs metrics to an MLflow server or folder; needs the extra `track`.

    Args:
        uri: address of the tracking server, or a database such as `sqlite:///runs.db`.
        experiment: name of the experiment, which is created if it does not exist.
        run: name of the run (default: one that MLflow chooses).
    """
    client = optional("mlflow", "track", "logging to MLflow")
    client.set_tracking_uri(uri)
    client.set_experiment(experiment)
    with client.start_run(run_name=run):
        yield value_listener(lambda name, value, step: client.log_metric(_allowed(name), value, step=step))


def _allowed(name: str) -> str:
    """Replace characters that MLflow does not allow in names.

    >>> _allowed("search, fuse/α entropy")
    'search_ fuse/_ entropy'
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)
