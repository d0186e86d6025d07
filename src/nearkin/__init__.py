"""nearkin: find tasks that are related to a new learning task (its kin), predict the cost of transfer, and solve it.

```python
import nearkin as nk

zoo = nk.Zoo("my-zoo")
zoo.add(nk.task("digits?detect=0", name="zero"), network="lenet", trials=3)
```

Names are imported when they are first used, so that `import nearkin` is fast.
"""

from typing import TYPE_CHECKING

from nearkin import _moved
from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin import core as core
    from nearkin import distance as distance
    from nearkin import fisher as fisher
    from nearkin import multitask as multitask
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
    from nearkin.distance.forecasting.forecasts import Forecast as Forecast
    from nearkin.distance.matrix import DistanceMatrix as DistanceMatrix
    from nearkin.distance.ranking import Kin as Kin
    from nearkin.distance.ranking import Ranking as Ranking
    from nearkin.fisher.values import FisherDiagonal as FisherDiagonal
    from nearkin.nets.recipe import Recipe as Recipe
    from nearkin.nets.registry import build as build
    from nearkin.nets.solved import Solved as Solved
    from nearkin.nets.training_loop import Fit as Fit
    from nearkin.nets.training_loop import fit as fit
    from nearkin.nets.trusted_code import trust as trust
    from nearkin.search.genotypes.genotype import Genotype as Genotype
    from nearkin.search.plasticity.anchor import WeightPlasticity as WeightPlasticity
    from nearkin.solver.estimator import NearkinClassifier as NearkinClassifier
    from nearkin.solver.estimator import NearkinRegressor as NearkinRegressor
    from nearkin.solver.plan import Plan as Plan
    from nearkin.solver.solution import Solution as Solution
    from nearkin.solver.solving import solve as solve
    from nearkin.store.catalogue import Catalogue as Catalogue
    from nearkin.tasks.examples import Examples as Examples
    from nearkin.tasks.prediction import Prediction as Prediction
    from nearkin.tasks.sources import task as task
    from nearkin.tasks.task import Task as Task
    from nearkin.transfer.classifier import LinearizedClassifier as LinearizedClassifier
    from nearkin.transfer.hyper import Hyper as Hyper
    from nearkin.transfer.posterior import Posterior as Posterior
    from nearkin.transfer.regressor import LinearizedRegressor as LinearizedRegressor
    from nearkin.zoo.model_ranking import rank as rank
    from nearkin.zoo.zoo import Zoo as Zoo

__version__ = "0.1.0"

_moved.install()

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = exports(__name__)
