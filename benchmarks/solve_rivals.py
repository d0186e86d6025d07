"""Rivals of `solve`, each as a user would write it with scikit-learn or torch in some twenty lines.

A rival `(draw, seconds, zoo)` fits all training samples within so many seconds of CPU time and returns its predictions
for the test samples. It never reads the test targets.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from torch import Tensor, nn

import nearkin as nk
from nearkin.tasks.examples import Scaling
from solve_tables import DATES, TEXTS
from solve_tasks import Array, Draw

BATCH, WARMUP = 64, 0.2
PREDICTING = 0.04  # share of the time that networks leave for the test samples
FINAL_FIT = 0.75  # cost of a fit to all samples, relative to three fits to two thirds of them


def date_parts(frame: pd.DataFrame) -> Array:
    """Day number, year, month and weekday of every date; 0 where it is missing."""
    columns = []
    for name in frame:
        dates = pd.to_datetime(frame[name])
        day = (dates - pd.Timestamp("2000-01-01")).dt.days
        columns += [day, dates.dt.year, dates.dt.month, dates.dt.dayofweek]
    return np.stack([column.fillna(0).to_numpy(float) for column in columns], 1)


def encoded(draw: Draw, gaps: bool = False) -> tuple[Array, Array]:
    """Training and test inputs as numbers `[N, D]`; `gaps` keeps missing numbers for models that read them."""
    if draw.images:
        train, test = (split.x.reshape(len(split.x), -1) / 255.0 for split in (draw.train, draw.test))
        return (train - train.mean()) / train.std(), (test - train.mean()) / train.std()
    frame = draw.train.x
    texts, dates = ([name for name in frame if name in names] for names in (TEXTS, DATES))
    numbers = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    filled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encoder = make_column_transformer(
        ("passthrough" if gaps else filled, numbers),
        (OneHotEncoder(handle_unknown="ignore"), [name for name in frame if name not in (*texts, *dates, *numbers)]),
        (make_pipeline(FunctionTransformer(date_parts), StandardScaler()), dates),
        *((TfidfVectorizer(), name) for name in texts),
        sparse_threshold=0,
    )
    return encoder.fit_transform(frame), encoder.transform(draw.test.x)


def chosen_by_cv(grid: Callable[[Array], Sequence[Any]], draw: Draw, seconds: float) -> Array:
    """The best model of a grid in three-fold cross-validation, fitted to all samples; it is tried while time is left.

    The grid depends on the training inputs, for kernel widths.
    """
    begun, scores = time.process_time(), []
    train, test = encoded(draw)
    models, y = grid(train), draw.train.y
    for model in models:
        before = time.process_time()
        scores.append(cross_val_score(model, train, y, cv=3).mean())
        spent = time.process_time() - before
        if time.process_time() - begun + (1 + FINAL_FIT) * spent > seconds:
            break
    return np.asarray(models[int(np.argmax(scores))].fit(train, y).predict(test))


def scaled_target(model: Any) -> Any:
    """A regressor of targets with mean 0 and variance 1."""
    return TransformedTargetRegressor(model, transformer=StandardScaler())


def svm(draw: Draw, seconds: float, zoo: Path) -> Array:
    """RBF support vector machine; C and the kernel's width by cross-validation."""

    def grid(x: Array) -> list[Any]:
        base = 1 / (x.shape[1] * x.var())  # gamma="scale"
        pairs = [(10, 1), (1, 1), (10, 0.3), (100, 0.3), (10, 3), (100, 0.1)]
        if draw.values:
            return [scaled_target(SVR(C=c / 10, gamma=g * base)) for c, g in pairs]
        return [SVC(C=c, gamma=g * base) for c, g in pairs]

    return chosen_by_cv(grid, draw, seconds)


def logistic(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Logistic or ridge regression; the penalty by cross-validation."""
    penalties = (0.01, 0.1, 1.0) if draw.images else (1.0, 0.1, 10.0, 0.01)
    if draw.values:
        return chosen_by_cv(lambda _: [Ridge(alpha=1 / c) for c in penalties], draw, seconds)
    return chosen_by_cv(lambda _: [LogisticRegression(C=c, max_iter=500) for c in penalties], draw, seconds)


def mlp(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Perceptron with 128 hidden units; the weight decay by cross-validation."""
    options: dict[str, Any] = {"hidden_layer_sizes": (128,), "max_iter": 300, "random_state": draw.seed}
    if draw.values:
        models = [scaled_target(MLPRegressor(alpha=a, **options)) for a in (0.1, 1, 10)]
        return chosen_by_cv(lambda _: models, draw, seconds)
    return chosen_by_cv(lambda _: [MLPClassifier(alpha=a, **options) for a in (0.1, 1e-4, 1)], draw, seconds)


def grown(model: Any, setting: str, first: int, most: int, draw: Draw, seconds: float) -> Array:
    """A warm-started model with as many trees as fit into the time, at most `most`."""
    begun = time.process_time()
    train, test = encoded(draw, gaps=True)
    size, done = first, 0
    while size > done:
        before = time.process_time()
        model.set_params(**{setting: size}).fit(train, draw.train.y)
        cost = (time.process_time() - before) / (size - done)
        if getattr(model, "n_iter_", size) < size:  # stopped early
            break
        left = (1 - PREDICTING) * seconds - (time.process_time() - begun)
        done, size = size, min(most, size + max(0, int(0.8 * left / cost)))
    return np.asarray(model.predict(test))


def boosting(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Histogram gradient boosting with default settings: 100 rounds."""
    kind = HistGradientBoostingRegressor if draw.values else HistGradientBoostingClassifier
    return grown(kind(warm_start=True, random_state=draw.seed), "max_iter", 5, 100, draw, seconds)


def boosting_stopped(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Histogram gradient boosting up to 1,000 rounds, stopped early by a tenth of the training samples."""
    kind = HistGradientBoostingRegressor if draw.values else HistGradientBoostingClassifier
    model = kind(early_stopping=True, warm_start=True, random_state=draw.seed)
    return grown(model, "max_iter", 5, 1000, draw, seconds)


def forest(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Random forest of 500 trees."""
    kind = RandomForestRegressor if draw.values else RandomForestClassifier
    return grown(kind(warm_start=True, random_state=draw.seed), "n_estimators", 25, 500, draw, seconds)


def shifted(x: Tensor, most: int) -> Tensor:
    """Images `[B, C, H, W]`, each moved by up to `most` pixels; zeros come in."""
    height, width = x.shape[2:]
    padded, moves = F.pad(x, [most] * 4), torch.randint(2 * most + 1, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + height, j : j + width] for image, (i, j) in zip(padded, moves, strict=True)])


def train_network(
    model: nn.Module, scale: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, seconds: float, optimiser: Any,
    warmup: float = 0.0,
) -> None:  # fmt: skip
    """Train with shifted images; the learning rate follows a cosine in the elapsed share of the CPU time."""
    peak, begun, most = optimiser.param_groups[0]["lr"], time.process_time(), max(1, round(x.shape[2] / 9))
    model.train()
    while True:
        for batch in torch.randperm(len(x)).split(BATCH):
            share = (time.process_time() - begun) / seconds
            if share >= 1:
                return
            if len(batch) < 2:
                continue
            falling = (1 + math.cos(math.pi * (share - warmup) / (1 - warmup))) / 2
            optimiser.param_groups[0]["lr"] = peak * (share / warmup if share < warmup else falling)
            loss = F.cross_entropy(model(scale(shifted(x[batch], most))), y[batch], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def network_classes(model: nn.Module, scale: Callable[[Tensor], Tensor], x: Tensor) -> Array:
    """Most probable classes of images."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(scale(part)).argmax(1) for part in x.split(256)]).numpy()


def block(inputs: int, outputs: int, pool: bool = True) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]


def cnn(draw: Draw, seconds: float, zoo: Path) -> Array:
    """Three blocks of convolution, normalisation and pooling, a linear layer; the whole time, all training samples."""
    begun = time.process_time()
    torch.manual_seed(draw.seed)
    x, test = (torch.from_numpy(split.x).float() / 255 for split in (draw.train, draw.test))
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    layers = [*block(x.shape[1], 16), *block(16, 32), *block(32, 64, pool=x.shape[2] >= 16), nn.Flatten()]
    model = nn.Sequential(*layers, nn.LazyLinear(int(draw.train.y.max()) + 1))
    model(x[:2])  # sets the size of the last layer
    optimiser = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def scale(images: Tensor) -> Tensor:
        return (images - mean) / std

    left = (1 - PREDICTING) * seconds - (time.process_time() - begun)
    train_network(model, scale, x, torch.from_numpy(draw.train.y), left, optimiser, WARMUP)
    return network_classes(model, scale, test)


def finetune(draw: Draw, seconds: float, zoo: Path) -> Array:
    """The LeNet of the task of the zoo that is nearest by LogME, with a new last layer, all weights fine-tuned."""
    begun = time.process_time()
    torch.manual_seed(draw.seed)
    with nk.Zoo(zoo) as tasks:
        solved = tasks.solved(tasks.near(draw.task, "logme").nearest.name)
    model, scaling = solved.model(), Scaling.from_dict(solved.facts["scaling"])
    channels, *size = solved.facts["input_shape"]

    def fitted(images: Array) -> Tensor:
        x = torch.from_numpy(images).float() / 255
        x = x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x.mean(1, keepdim=True) if channels == 1 else x
        return x if list(x.shape[2:]) == size else F.interpolate(x, size, mode="bilinear", antialias=True)

    name, head = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]
    model.set_submodule(name, nn.Linear(head.in_features, int(draw.train.y.max()) + 1))
    x, y = fitted(draw.train.x), torch.from_numpy(draw.train.y)
    optimiser = torch.optim.AdamW(model.requires_grad_().parameters(), 1e-3)
    left = max(0.1 * seconds, (1 - PREDICTING) * seconds - (time.process_time() - begun))  # the ranking takes seconds
    train_network(model, scaling, x, y, left, optimiser)
    return network_classes(model, scaling, fitted(draw.test.x))


Rival = Callable[[Draw, float, Path], Array]
SIMPLE: dict[str, Rival] = {
    "svm": svm,
    "boosting": boosting,
    "boosting, stopped": boosting_stopped,
    "forest": forest,
    "logistic": logistic,
}
FOR_IMAGES: dict[str, Rival] = {"cnn": cnn, "finetune": finetune}
FOR_TABLES: dict[str, Rival] = {"mlp": mlp}
RIVALS: dict[str, Rival] = {**SIMPLE, **FOR_IMAGES, **FOR_TABLES}


def predicted(rival: str, draw: Draw, seconds: float, zoo: Path) -> Array:
    """Predictions of a rival for the test samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: the time is limited
        return RIVALS[rival](draw, seconds, zoo)
