"""Old import paths and names work, with a warning that names the new ones."""

import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import nearkin
from nearkin._moved import MOVED, RENAMED

ROOT = Path(str(nearkin.__file__)).parent


@pytest.fixture(autouse=True)
def without_old_modules() -> Iterator[None]:
    """Forget old modules after each test, and restore what their packages export."""
    parents = {old: old.rpartition(".")[::2] for old in MOVED}
    known = {
        old: vars(importlib.import_module(parent)).get(name)
        for old, (parent, name) in parents.items()
        if parent not in MOVED
    }
    yield
    for old, (parent, name) in parents.items():
        sys.modules.pop(old, None)
        if old in known:
            vars(sys.modules[parent]).pop(name, None)
            if known[old] is not None:
                setattr(sys.modules[parent], name, known[old])


@pytest.mark.parametrize("old", MOVED)
def test_old_modules_forward_to_the_new_ones(old: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is now {MOVED[old]}" in [str(warning.message) for warning in heard]
    new = importlib.import_module(MOVED[old])
    for name in vars(new):
        if not name.startswith("_"):
            assert getattr(module, name) is getattr(new, name)


def test_no_old_path_is_in_use_again() -> None:
    for old in MOVED:
        file = ROOT.joinpath(*old.split(".")[1:])
        assert not file.with_suffix(".py").exists(), old
        assert not (file / "__init__.py").exists(), old


def test_old_names_forward_to_the_new_ones() -> None:
    for module, names in RENAMED.items():
        for old, new in names.items():
            with pytest.warns(DeprecationWarning, match=rf"{module}.{old} is now {new}") as warned:
                assert getattr(importlib.import_module(module), old) is not None
            assert warned[0].filename == __file__, "the warning is attributed to the caller"
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
