"""The public front: every exported name resolves, types agree with what is imported, nothing is shadowed or slow."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nearkin as nk

PACKAGES = [
    nk, nk.core, nk.distance, nk.fisher, nk.multitask, nk.nets, nk.run, nk.search, nk.solver, nk.store, nk.tasks,
    nk.transfer, nk.zoo,
]  # fmt: skip
VALUES = ("FisherDiagonal", "Forecast", "Genotype", "Kin", "Prediction", "Ranking", "Solution", "Solved", "Task")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
class TestEveryPackage:
    def test_every_exported_name_resolves(self, package: ModuleType) -> None:
        assert package.__all__
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert dir(package) == sorted(package.__all__)
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
            _ = package.nothing

    def test_type_checkers_see_the_same_names(self, package: ModuleType) -> None:
        """The block under TYPE_CHECKING names what `exports` names, from the same modules."""
        tree = ast.parse(Path(str(package.__file__)).read_text())
        seen = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.col_offset:
                for alias in node.names:
                    assert alias.asname == alias.name
                    module = importlib.import_module(str(node.module))
                    seen[alias.name] = getattr(module, alias.name)
        assert seen == {name: getattr(package, name) for name in package.__all__}

    def test_no_module_has_the_name_of_an_exported_function(self, package: ModuleType) -> None:
        for module in pkgutil.iter_modules(package.__path__):
            if module.name in package.__all__:
                assert isinstance(getattr(package, module.name), ModuleType)


def test_values_that_travel_are_exported() -> None:
    for name in VALUES:
        assert isinstance(getattr(nk, name), type)


def test_the_packages_of_the_architecture_are_attributes() -> None:
    folders = {module.name for module in pkgutil.iter_modules(nk.__path__) if module.ispkg}
    assert folders - {"cli", "web"} <= set(nk.__all__)


@pytest.mark.parametrize("program", ["import nearkin", "import nearkin.cli.app", "import nearkin.transfer"])
def test_torch_is_not_imported_before_it_is_used(program: str) -> None:
    check = f"{program}\nimport sys\nprint([name for name in ('torch', 'sklearn', 'gpytorch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch.kernels", None)
    monkeypatch.delitem(sys.modules, "nearkin.transfer.gpytorch_kernel", raising=False)
    monkeypatch.delitem(vars(nk.transfer), "TangentKernel", raising=False)
    with pytest.raises(nk.NearkinError, match=r"needs gpytorch: pip install 'nearkin\[gpytorch\]'"):
        _ = nk.transfer.TangentKernel
