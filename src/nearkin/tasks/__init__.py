"""Tasks: data, its likelihood, and the ways one task is made from another. Knows no network."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.tasks.examples import Batch as Batch
    from nearkin.tasks.examples import Examples as Examples
    from nearkin.tasks.examples import Scaling as Scaling
    from nearkin.tasks.likelihood import Likelihood as Likelihood
    from nearkin.tasks.metrics import metric_identifier as metric_identifier
    from nearkin.tasks.metrics import metric_title as metric_title
    from nearkin.tasks.prediction import Prediction as Prediction
    from nearkin.tasks.task import Task as Task
else:
    __getattr__, __dir__, __all__ = exports(__name__)
