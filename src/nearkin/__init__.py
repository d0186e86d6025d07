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

if TYPE_CHECKING:
    from nearkin import distance as distance
    from nearkin import fisher as fisher
    from nearkin.core.errors import NearkinError as NearkinError
    from nearkin.distance.ranking import Ranking as Ranking
    from nearkin.nets.fit import Fit as Fit
    from nearkin.nets.fit import fit as fit
    from nearkin.nets.recipe import Recipe as Recipe
    from nearkin.nets.registry import build as build
    from nearkin.nets.solved import Solved as Solved
    from nearkin.nets.trusted_code import trust as trust
    from nearkin.search.budget import Budget as Budget
    from nearkin.solve.estimator import NearkinClassifier as NearkinClassifier
    from nearkin.solve.solution import Solution as Solution
    from nearkin.solve.solving import solve as solve
    from nearkin.tasks.sources import task as task
    from nearkin.tasks.task import Task as Task
    from nearkin.transfer.classifier import LinearizedClassifier as LinearizedClassifier
    from nearkin.transfer.regressor import LinearizedRegressor as LinearizedRegressor
    from nearkin.zoo.catalogue import Catalogue as Catalogue
    from nearkin.zoo.zoo import Zoo as Zoo

__version__ = "0.1.0"

_HOMES = {
    "Budget": "nearkin.search.budget",
    "Catalogue": "nearkin.zoo.catalogue",
    "Fit": "nearkin.nets.fit",
    "LinearizedClassifier": "nearkin.transfer.classifier",
    "LinearizedRegressor": "nearkin.transfer.regressor",
    "NearkinClassifier": "nearkin.solve.estimator",
    "NearkinError": "nearkin.core.errors",
    "Ranking": "nearkin.distance.ranking",
    "Recipe": "nearkin.nets.recipe",
    "Solution": "nearkin.solve.solution",
    "Solved": "nearkin.nets.solved",
    "Task": "nearkin.tasks.task",
    "Zoo": "nearkin.zoo.zoo",
    "build": "nearkin.nets.registry",
    "fit": "nearkin.nets.fit",
    "task": "nearkin.tasks.sources",
    "trust": "nearkin.nets.trusted_code",
}

_ROOMS = ("distance", "fisher", "solve")

__all__ = [*sorted(_HOMES), *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"nearkin.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'nearkin' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
