"""Files are written whole or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from nearkin.core.files import FileWriteError, durable_file, write_durably


def test_an_exception_leaves_the_old_file_and_no_traces(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    write_durably(file, b"old")

    def broken() -> None:
        with durable_file(file) as out:
            out.write(b"half of the new")
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_folders_are_made_and_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "a.bin"
    write_durably(file, b"x")
    assert file.stat().st_mode & 0o444 == 0o444 & ~_umask()


def test_a_folder_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileWriteError, match=r"cannot write .*taken.*nothing was changed"):
        write_durably(tmp_path / "taken", b"x")


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    write_durably(file, b"old")
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from nearkin.core.files import write_durably, FileWriteError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_durably(Path(sys.argv[1]), bytes(5000))\n"
        "except FileWriteError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True).stdout
    assert "cannot write" in said
    assert "free space" in said
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask
