"""Old import paths and names work, with a warning that names the new ones."""

import importlib
import subprocess
import sys

import pytest

from nearkin._moved import MOVED, RENAMED


@pytest.mark.parametrize("old", MOVED)
def test_old_modules_forward_to_the_new_ones(old: str) -> None:
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=rf"{old} is now {MOVED[old]}"):
        module = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    for name in vars(new):
        if not name.startswith("_"):
            assert getattr(module, name) is getattr(new, name)


def test_old_names_forward_to_the_new_ones() -> None:
    for module, names in RENAMED.items():
        for old, new in names.items():
            with pytest.warns(DeprecationWarning, match=rf"{module}.{old} is now {new}"):
                assert callable(getattr(importlib.import_module(module), old))
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(importlib.import_module(module), "nothing")  # noqa: B009


PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import nearkin as nk
from nearkin.solve.plan import Plan
from nearkin.fisher.diagonal import Accumulator
import torch
from nearkin.transfer.linearize import linearize
assert nk.fisher.diagonal(torch.nn.Linear(2, 2), torch.ones(1, 2), torch.tensor([0])).num_samples == 1
assert callable(nk.solve)
try:
    nk.solve("digits", None, plan=Plan(only=("nothing",)))
except Exception as error:
    print(type(error).__name__)
"""


def test_functions_can_be_called_after_a_module_of_their_name_was_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "OptionError"
