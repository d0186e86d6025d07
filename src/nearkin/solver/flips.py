"""Check whether mirrored images keep their class, so that random flips are a valid augmentation."""

import numpy as np
import torch

from nearkin.core.rng import Streams
from nearkin.tasks.task import Task

SAMPLES = 1000
FOLDS = 5
THRESHOLD = 0.85
"""Flip above this ratio: digits have .26 to .54, clothes .69 to .74, photographs .93 to 1.04."""


def mirror_ratio(task: Task, seed: int = 0, samples: int = SAMPLES) -> float:
    """Accuracy of an RBF-SVM on mirrored held-out images, divided by its accuracy on the plain ones; five folds.

    Args:
        task: images with classes.
        seed: of the samples and folds.
        samples: largest number of training samples used.
    """
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.model_selection import KFold
    from sklearn.svm import SVC

    rows = torch.randperm(len(task.train), generator=Streams(seed).at("flips"))[:samples]
    if len(rows) < FOLDS:
        return 0.0
    images, labels = task.train.take(rows.sort().values)
    plain, mirrored = (x.flatten(1).double().numpy() for x in (images, images.flip(-1)))
    y = labels.numpy()
    gamma = 1 / (plain.shape[1] * max(float(plain.var()), 1e-12))  # scikit-learn's default
    kernels = [rbf_kernel(x, plain, gamma) for x in (plain, mirrored)]
    right = np.zeros(2)
    for train, validation in KFold(FOLDS, shuffle=True, random_state=seed % 2**31).split(plain):
        if len(np.unique(y[train])) < 2:
            continue
        model = SVC(C=10, kernel="precomputed").fit(kernels[0][np.ix_(train, train)], y[train])
        right += [(model.predict(k[np.ix_(validation, train)]) == y[validation]).sum() for k in kernels]
    return float(right[1] / right[0]) if right[0] > 0 else 0.0
