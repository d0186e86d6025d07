"""Fixtures for all tests and examples: a fixed seed, and a configuration folder for the tests only."""

from collections.abc import Iterator

import pytest
import torch

from nearkin.nets import trusted_code


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty configuration folder, also in commands that tests start, instead of that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        patch.delenv(trusted_code.VARIABLE, raising=False)
        yield


@pytest.fixture(autouse=True)
def _without_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test what it trusts."""
    monkeypatch.setattr(trusted_code, "_process", set())
