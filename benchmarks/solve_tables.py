"""Generated tables with missing values, categories, dates and text; rows and the rule of the target come from a seed.

All tables have a column `target`. Numbers are missing completely at random, and in `income` more often if they are
large. The share of the target that no method can learn is fixed: noise of real values, and labels that are drawn at
random.
"""

from typing import Any

import numpy as np
import pandas as pd

TARGET = "target"
CITIES = ("Aachen", "Basel", "Cork", "Delft", "Espoo", "Faro", "Gdansk", "Herning")
PLANS = ("basic", "plus", "family")
SUBJECTS = {
    "billing": ("invoice", "refund", "charge", "payment", "price"),
    "delivery": ("parcel", "courier", "address", "package", "delay"),
    "account": ("password", "login", "email", "profile", "username"),
    "product": ("screen", "battery", "cable", "button", "noise"),
}
TEMPLATES = (
    "please help, the {a} is wrong and nobody answers about the {b}",
    "I wrote twice about my {a}",
    "the {a} was fine but now the {b} does not work",
    "question on {a} and {b}",
    "since Monday I have had a problem with the {b}, the {a} too",
)
DATES, TEXTS = ("since",), ("comment", "message")
"""Columns of dates and of text."""
PRAISE = ("great, thank you", "very friendly", "solved at once", "happy with it")
BLAME = ("slow answer", "still broken", "not polite", "waited for weeks")
FILLERS = (
    "I",
    "my",
    "the",
    "shop",
    "order",
    "came",
    "today",
    "again",
    "phone",
    "staff",
    "we",
    "asked",
    "called",
    "box",
)


def mixed_columns(count: int, rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Columns of several kinds with missing cells, and their complete values."""
    full: dict[str, Any] = {
        "age": rng.integers(18, 90, count).astype(float),
        "income": np.exp(rng.normal(10, 0.6, count)),
        "visits": rng.poisson(4, count).astype(float),
        "distance": rng.gamma(2, 5, count),
        "score": rng.normal(0, 1, count),
        "city": rng.choice(CITIES, count),
        "plan": rng.choice(PLANS, count, p=(0.6, 0.3, 0.1)),
        "member": rng.random(count) < 0.4,
        "since": pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1800, count), unit="D"),
        "good": rng.random(count) < 0.5,
    }
    opinion = np.where(full["good"], rng.choice(PRAISE, count), rng.choice(BLAME, count))
    comment = [f"{' '.join(rng.choice(FILLERS, 5))}: {text}, {' '.join(rng.choice(FILLERS, 3))}" for text in opinion]
    frame = pd.DataFrame({name: full[name] for name in full if name != "good"}).assign(comment=comment)
    frame["member"] = np.where(full["member"], "yes", "no")
    frame["since"] = frame["since"].dt.strftime("%Y-%m-%d")
    for name, share in (("age", 0.05), ("visits", 0.1), ("distance", 0.15), ("city", 0.08), ("since", 0.05)):
        frame.loc[rng.random(count) < share, name] = None
    frame.loc[rng.random(count) < np.where(full["income"] > 30_000, 0.3, 0.05), "income"] = None
    return frame, full


def signal(full: dict[str, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Standardised rule of the target: thresholds, products, categories, dates and words, weighted by the seed."""
    cities = dict(zip(CITIES, rng.normal(0, 1, len(CITIES)), strict=True))
    plans = dict(zip(PLANS, rng.normal(0, 1, len(PLANS)), strict=True))
    days = (full["since"] - pd.Timestamp("2019-01-01")).days.to_numpy()
    parts = (
        np.tanh((full["age"] - rng.uniform(35, 65)) / 10),
        np.log(full["income"]) - 10,
        np.where(full["visits"] > 4, 1.0, -1.0) * full["score"],
        np.array([cities[city] for city in full["city"]]),
        np.array([plans[plan] for plan in full["plan"]]) * np.where(full["member"], 1.0, -0.5),
        np.cos(2 * np.pi * days / 365.25),
        np.where(full["good"], 1.0, -1.0),
        np.sqrt(full["distance"]) - 3,
    )
    total = sum(rng.choice((-1, 1)) * rng.uniform(0.5, 1.5) * part / part.std() for part in parts)
    return np.asarray((total - np.mean(total)) / np.std(total))


def generated_values(count: int, seed: int) -> pd.DataFrame:
    """Real values: the rule, and noise of a quarter of the total variance."""
    rng = np.random.default_rng([seed, 1])
    frame, full = mixed_columns(count, rng)
    return frame.assign(**{TARGET: signal(full, rng) + rng.normal(0, 3**-0.5, count)})


def generated_classes(count: int, seed: int) -> pd.DataFrame:
    """Three classes: thirds of the rule; a tenth of the labels is drawn at random."""
    rng = np.random.default_rng([seed, 2])
    frame, full = mixed_columns(count, rng)
    value = signal(full, rng)
    labels = np.array(("low", "middle", "high"))[np.searchsorted(np.quantile(value, (1 / 3, 2 / 3)), value)]
    return frame.assign(**{TARGET: np.where(rng.random(count) < 0.1, rng.permutation(labels), labels)})


def rare_class(count: int, seed: int) -> pd.DataFrame:
    """Two classes: an eighth of the rows, those with the highest values of rule and noise, are `yes`."""
    rng = np.random.default_rng([seed, 3])
    frame, full = mixed_columns(count, rng)
    value = signal(full, rng) + rng.normal(0, 0.4, count)
    return frame.assign(**{TARGET: np.where(value > np.quantile(value, 7 / 8), "yes", "no")})


def generated_text(count: int, seed: int) -> pd.DataFrame:
    """Messages from templates; the class is the subject of the word `a`, and 5 % of the labels are wrong."""
    rng = np.random.default_rng([seed, 4])
    subjects = list(SUBJECTS)
    rows = []
    for _ in range(count):
        own, other = rng.choice(subjects, 2, replace=False)
        first, second = rng.choice(SUBJECTS[own]), rng.choice(SUBJECTS[own if rng.random() < 0.6 else other])
        text = str(rng.choice(TEMPLATES)).format(a=first, b=second)
        rows.append((text, int(rng.integers(0, 24)), own if rng.random() < 0.95 else other))
    return pd.DataFrame(rows, columns=["message", "hour", TARGET])
