"""Whatever draws from torch's own generator, an example in a docstring say, draws the same every time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
