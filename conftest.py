"""Fixtures for all tests and examples: a fixed seed, and a configuration folder for the tests only."""

import gc
from collections.abc import Generator, Iterator

import pytest
import torch

from nearkin.nets import trusted_code


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and collected tests, half a million objects, out of every later search for cyclic garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use empty folders of configuration and cache, also in commands that tests start, instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv(trusted_code.VARIABLE, raising=False)
        yield


@pytest.fixture(autouse=True)
def _without_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test what it trusts."""
    monkeypatch.setattr(trusted_code, "_process", set())
