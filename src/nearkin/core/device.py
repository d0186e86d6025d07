"""The torch device that computations run on."""

import torch

from nearkin.core.errors import OptionError, require


def device(name: str = "auto") -> torch.device:
    """The device of that name; `auto` is the first CUDA device if there is one, else the CPU.

    >>> device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    require(device.type != "cuda" or torch.cuda.is_available(), "there is no CUDA device here; use --device cpu")
    return device
