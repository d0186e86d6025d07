"""What every test and example runs in: the same random numbers, and a configuration folder of its own."""

from collections.abc import Iterator

import pytest
import torch

from nearkin.nets import trusted_code


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's own configuration; commands in other processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        patch.delenv(trusted_code.VARIABLE, raising=False)
        yield


@pytest.fixture(autouse=True)
def _without_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test trusts is not trusted in the next."""
    monkeypatch.setattr(trusted_code, "_process", set())
