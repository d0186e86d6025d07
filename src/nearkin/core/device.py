"""The device that work runs on."""

import torch

from nearkin.core.errors import OptionError, require


def device(name: str = "auto") -> torch.device:
    """`auto` is the first CUDA device where there is one, else the CPU.

    >>> device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise OptionError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    require(chosen.type != "cuda" or torch.cuda.is_available(), "there is no CUDA device here; use --device cpu")
    return chosen
