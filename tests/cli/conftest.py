"""The command line as a fixture."""

import sys
from pathlib import Path

import pytest

from calling import Call, Said
from nearkin.cli.app import main


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARKIN_ZOO", raising=False)
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "no-data"))

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["nearkin", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, out, err)

    return run
