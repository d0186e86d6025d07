"""Options of the supernets of a search for several tasks by name, for the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nearkin.core.options import Option, options_of
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.supernet.reference import Frame

SEARCH = replace(
    PARTIAL, epochs=20, warmup=6, learning_rate=0.05, frame=replace(PARTIAL.frame, channels=8, num_cells=5)
)
"""Defaults of PC-DARTS for several tasks: fewer epochs than for one, as every epoch has all tasks and rounds."""

WARMUP = 0.3  # share of the epochs, as 15 of 50


def gradient_fields() -> tuple[Option, ...]:
    """Options of the supernets, the weights and the architecture."""
    warmup = Option("warmup", int, True, None, "epochs at the start that only train weights (default: 3 of 10).")
    return (*options_of((SEARCH, SEARCH.frame, SEARCH.guards, ForgettingOptions), ("warmup",)), warmup)


def gradient_options(values: Mapping[str, Any], default: GradientOptions = SEARCH) -> GradientOptions:
    """Options of the supernets from values by name; the warm-up is a share of the epochs if it is not given.

    >>> gradient_options({"epochs": 10, "channels": 16, "max_skips": None}).warmup
    3
    """
    epochs = values.get("epochs", default.epochs)
    warmup = values.get("warmup")
    return replace(
        default,
        **_chosen(GradientOptions, values, without=("warmup",)),
        warmup=int(WARMUP * epochs) if warmup is None else warmup,
        frame=replace(default.frame, **_chosen(Frame, values)),
        guards=replace(default.guards, **_chosen(Guards, values)),
        forgetting=replace(default.forgetting, **_chosen(ForgettingOptions, values)),
    )


def _chosen(owner: type, values: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """The values that are fields of a class."""
    names = {option.name for option in options_of((owner,))} - set(without)
    return {name: value for name, value in values.items() if name in names}
