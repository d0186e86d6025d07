"""A zoo as fixtures."""

import shutil
from pathlib import Path

import pytest

from web.zoos import filled


@pytest.fixture(scope="session")
def made_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("made") / "zoo")


@pytest.fixture
def zoo(made_zoo: Path, tmp_path: Path) -> Path:
    """A zoo of one's own."""
    return Path(shutil.copytree(made_zoo, tmp_path / "zoo"))
