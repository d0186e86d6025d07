"""Cheap measures of transferability, as pure functions of tensors.

| measure | computed from | better |
| --- | --- | --- |
| `logme`, `logme_regression`, `kernel_evidence` | features or a kernel, and targets | larger |
| `leep`, `nce` | the source's predictions | larger |
| `hscore`, `cka` (with labels), `knn_accuracy`, `knn_r2` | features and targets | larger |
| `ridge_loo`, `gradient_flow`, `head_loss`, `cross_validated_loss`, `gradient_norm` | features and targets | smaller |
| `task2vec_distance`, `task2vec_asymmetric` | Fisher diagonals of one network on two tasks | smaller |
| `mmd`, `fid` | features of one network on two data sets | smaller |
| `random_order` | nothing: the chance level | |

All compute in float64 without gradients, and none depends on the order of samples. Features are those of the source
network on samples of the target.
"""

from nearkin.distance.baselines.dataset import fid, mmd
from nearkin.distance.baselines.frozen_features import cka, gradient_flow, kernel_evidence, ridge_loo
from nearkin.distance.baselines.gradient import gradient_norm
from nearkin.distance.baselines.hscore import hscore
from nearkin.distance.baselines.leep import leep, nce
from nearkin.distance.baselines.linear_head import Head, cross_validated_loss, fitted_head, head_loss
from nearkin.distance.baselines.logme import logme, logme_regression
from nearkin.distance.baselines.neighbours import knn_accuracy, knn_r2
from nearkin.distance.baselines.order import random_order
from nearkin.distance.baselines.task2vec import task2vec_asymmetric, task2vec_distance, task2vec_embedding

__all__ = [
    "Head",
    "cka",
    "cross_validated_loss",
    "fid",
    "fitted_head",
    "gradient_flow",
    "gradient_norm",
    "head_loss",
    "hscore",
    "kernel_evidence",
    "knn_accuracy",
    "knn_r2",
    "leep",
    "logme",
    "logme_regression",
    "mmd",
    "nce",
    "random_order",
    "ridge_loo",
    "task2vec_asymmetric",
    "task2vec_distance",
    "task2vec_embedding",
]
