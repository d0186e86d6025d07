"""Listeners that write the figures of long work where others look at them: TensorBoard and MLflow.

Both take every `Progress` of a work and log its values under `stage/name`, at the step the event tells.

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
"""(name, value, step) → nothing."""


def each_value(write: Write) -> Listener:
    """A listener that hands on every value of every progress.

    >>> heard = []
    >>> each_value(lambda *one: heard.append(one))(Progress("search, fuse", 3, 9, {"best": 0.5}))
    >>> heard
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
        folder: made if absent; `tensorboard --logdir` shows it.
    """
    optional("tensorboard", "track", "writing for TensorBoard")
    from torch.utils.tensorboard import SummaryWriter  # torch imports it from the extra

    with SummaryWriter(folder) as writer:
        yield each_value(lambda name, value, step: writer.add_scalar(name, value, step))


@contextmanager
def mlflow(uri: str, experiment: str = "nearkin", run: str | None = None) -> Iterator[Listener]:
    """A listener that logs metrics to an MLflow server or folder; needs the extra `track`.

    Args:
        uri: of the tracking server, such as `sqlite:///runs.db` or the address of one.
        experiment: made if absent.
        run: what the run is called.
    """
    client = optional("mlflow", "track", "logging to MLflow")
    client.set_tracking_uri(uri)
    client.set_experiment(experiment)
    with client.start_run(run_name=run):
        yield each_value(lambda name, value, step: client.log_metric(_allowed(name), value, step=step))


def _allowed(name: str) -> str:
    """A name with those characters only that MLflow takes.

    >>> _allowed("search, fuse/α entropy")
    'search_ fuse/_ entropy'
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)
