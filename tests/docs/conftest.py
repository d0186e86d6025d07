"""The warm command line as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from warm import warm_command


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_command(tmp_path_factory.mktemp("bin")) as folder:
        yield folder
