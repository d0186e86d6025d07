"""Network strings that name code, and a module that leaves a trace when it is imported or called."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

MODULE = "nearkin_canary"
CANARY = """
from pathlib import Path
import os
import torch

Path({trace!r}).write_text("imported")


class Net(torch.nn.Linear):
    def __init__(self, input_shape, num_outputs):
        super().__init__(64, num_outputs)

    def forward(self, x):
        return super().forward(x.flatten(1))


def effect(path):
    Path({trace!r}).write_text("called")
"""


class Canary:
    """The module as a file in a folder, and the file that it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trace, self.path = folder, folder / "trace", folder / f"{MODULE}.py"
        self.path.write_text(CANARY.format(trace=str(self.trace)))

    @property
    def sang(self) -> bool:
        """Whether anything of it was run."""
        return self.trace.exists() or MODULE in sys.modules

    @property
    def networks(self) -> dict[str, str]:
        """Strings that would run code, by a short name."""
        inner = quote(f"{MODULE}:Net", safe="")
        return {
            "module": f"{MODULE}:Net",
            "function": f"{MODULE}:effect?path=x",
            "reached": f"{MODULE}:os.system?command=echo>{self.trace}",
            "relative file": f"{MODULE}.py:Net",
            "dotted file": f"./../{self.folder.name}/{MODULE}.py:Net",
            "file": f"{self.path}:Net",
            "shell": f"os:system?command=echo>{self.trace}",
            "folder": f"os:mkdir?path={self.trace}",
            "process": f"subprocess:check_output?args=touch&shell=true&executable={self.trace}",
            "exec": "builtins:exec?source=1",
            "importer": f"nearkin.nets.registry:importlib.import_module?name={MODULE}",
            "own function": f"nearkin.core.files:write_durably?path={self.trace}&data=x",
            "own command": "nearkin.cli.app:main",
            "own attribute": "nearkin.search.named:Genotype.parse?text=x",
            "machine": f"nearkin.transfer.machine:tangent_machine?network={inner}&outputs=2&points=5",
            "wide letter": f"ｎ{MODULE[1:]}:Net",
            "two colons": f"{MODULE}:Net:Net",
            "parent": f".{MODULE}:Net",
            "blank": f" {MODULE}:Net",
        }


@contextmanager
def canary_in(folder: Path) -> Iterator[Canary]:
    """A canary that Python can import, in the working folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        yield Canary(folder)
        sys.modules.pop(MODULE, None)
