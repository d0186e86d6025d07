"""nearkin: find the near kin of a learning task, say what transfer costs, and solve the task from what is known.

```python
import nearkin as nk

zoo = nk.Zoo("my-zoo")
zoo.add(nk.task("digits?detect=0", name="zero"), network="lenet", trials=3)
```

Names are imported when they are first asked for: `import nearkin` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nearkin import _moved

if TYPE_CHECKING:
    from nearkin import core as core
    from nearkin import distance as distance
    from nearkin import fisher as fisher
    from nearkin import nets as nets
    from nearkin import report as report
    from nearkin import run as run
    from nearkin import search as search
    from nearkin import solver as solver
    from nearkin import store as store
    from nearkin import tasks as tasks
    from nearkin import transfer as transfer
    from nearkin import zoo as zoo
    from nearkin.core.budget import Budget as Budget
    from nearkin.core.errors import NearkinError as NearkinError
    from nearkin.core.events import listening as listening
    from nearkin.distance.ranking import Ranking as Ranking
    from nearkin.nets.recipe import Recipe as Recipe
    from nearkin.nets.registry import build as build
    from nearkin.nets.solved import Solved as Solved
    from nearkin.nets.training_loop import Fit as Fit
    from nearkin.nets.training_loop import fit as fit
    from nearkin.nets.trusted_code import trust as trust
    from nearkin.solver.estimator import NearkinClassifier as NearkinClassifier
    from nearkin.solver.solution import Solution as Solution
    from nearkin.solver.solving import solve as solve
    from nearkin.store.catalogue import Catalogue as Catalogue
    from nearkin.tasks.sources import task as task
    from nearkin.tasks.task import Task as Task
    from nearkin.transfer.classifier import LinearizedClassifier as LinearizedClassifier
    from nearkin.transfer.regressor import LinearizedRegressor as LinearizedRegressor
    from nearkin.zoo.zoo import Zoo as Zoo

__version__ = "0.1.0"

_HOMES = {
    "Budget": "nearkin.core.budget",
    "Catalogue": "nearkin.store.catalogue",
    "Fit": "nearkin.nets.training_loop",
    "LinearizedClassifier": "nearkin.transfer.classifier",
    "LinearizedRegressor": "nearkin.transfer.regressor",
    "NearkinClassifier": "nearkin.solver.estimator",
    "NearkinError": "nearkin.core.errors",
    "Ranking": "nearkin.distance.ranking",
    "Recipe": "nearkin.nets.recipe",
    "Solution": "nearkin.solver.solution",
    "Solved": "nearkin.nets.solved",
    "Task": "nearkin.tasks.task",
    "Zoo": "nearkin.zoo.zoo",
    "build": "nearkin.nets.registry",
    "fit": "nearkin.nets.training_loop",
    "listening": "nearkin.core.events",
    "solve": "nearkin.solver.solving",
    "task": "nearkin.tasks.sources",
    "trust": "nearkin.nets.trusted_code",
}

_PACKAGES = (
    "core", "distance", "fisher", "nets", "report", "run", "search", "solver", "store", "tasks", "transfer", "zoo",
)  # fmt: skip

__all__ = [*sorted(_HOMES), *_PACKAGES, "__version__"]


_moved.install()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"nearkin.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'nearkin' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
