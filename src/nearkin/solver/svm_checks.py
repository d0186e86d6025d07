"""Quick checks of images by an RBF-SVM: whether mirrored ones keep their class, and whether features beat pixels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.task import Task

SAMPLES = 1000
FOLDS = 5
THRESHOLD = 0.85
"""Flip above this ratio: digits have .26 to .54, clothes .69 to .74, photographs .93 to 1.04."""

LEAD = 3.0  # standard errors by which features have to be better


def mirror_ratio(task: Task, seed: int = 0, samples: int = SAMPLES) -> float:
    """Accuracy of an RBF-SVM on mirrored held-out images, divided by its accuracy on the plain ones; five folds.

    Args:
        task: images with classes.
        seed: of the samples and folds.
        samples: largest number of training samples used.
    """
    rows = check_rows(len(task.train), seed, samples)
    if len(rows) < FOLDS:
        return 0.0
    images, labels = task.train.take(rows)
    plain, mirrored = held_out_hits((images, images.flip(-1)), labels, seed).sum(1)
    return float(mirrored / plain) if plain > 0 else 0.0


def lead_over_pixels(features: Tensor, images: Tensor, labels: Tensor, seed: int = 0) -> tuple[float, float, bool]:
    """Held-out accuracy of an RBF-SVM of features `[N, D]` and of pixels, and whether the first is clearly higher.

    Clearly: by more than three standard errors of the difference over samples.
    """
    ours, theirs = (held_out_hits((x,), labels, seed)[0].astype(float) for x in (features, images))
    gain = ours - theirs
    clearly = gain.mean() > LEAD * gain.std() / math.sqrt(len(gain))
    return float(ours.mean()), float(theirs.mean()), bool(clearly)


def check_rows(count: int, seed: int, samples: int = SAMPLES) -> Tensor:
    """Positions of at most `samples` of `count` samples, drawn at random, rising."""
    return torch.randperm(count, generator=Streams(seed).at("flips"))[:samples].sort().values


def held_out_hits(versions: Sequence[Tensor], labels: Tensor, seed: int) -> NDArray[np.bool_]:
    """Which samples an RBF-SVM of the first version predicts correctly, for each version `[V, N]`; five folds.

    Args:
        versions: inputs `[N, ...]`; the first one is learned.
        labels: classes `[N]`.
        seed: of the folds.
    """
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.model_selection import KFold
    from sklearn.svm import SVC

    tables, y = [x.flatten(1).double().numpy() for x in versions], labels.numpy()
    gamma = 1 / (tables[0].shape[1] * max(float(tables[0].var()), 1e-12))  # scikit-learn's default
    kernels = [rbf_kernel(x, tables[0], gamma) for x in tables]
    right = np.zeros((len(tables), len(y)), dtype=bool)
    for train, held_out in KFold(min(FOLDS, len(y)), shuffle=True, random_state=seed % 2**31).split(y):
        if len(np.unique(y[train])) < 2:
            continue
        model = SVC(C=10, kernel="precomputed").fit(kernels[0][np.ix_(train, train)], y[train])
        right[:, held_out] = [model.predict(k[np.ix_(held_out, train)]) == y[held_out] for k in kernels]
    return right
