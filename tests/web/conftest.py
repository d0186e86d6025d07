"""A zoo and a browser as fixtures."""

import shutil
from pathlib import Path

import pytest

from web.zoos import filled

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def made_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("made") / "zoo")


@pytest.fixture
def zoo(made_zoo: Path, tmp_path: Path) -> Path:
    """A zoo of one's own."""
    return Path(shutil.copytree(made_zoo, tmp_path / "zoo"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the system's Chromium is."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser found among {', '.join(BROWSERS)}; on Debian: apt-get install chromium")
    return found
