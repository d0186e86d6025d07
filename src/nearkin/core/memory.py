"""Memory of the process: how much it uses, and whether an error means that it ran out."""

import math
from pathlib import Path

_EXHAUSTED = ("can't allocate memory", "cannot allocate memory", "out of memory", "not enough memory", "bad_alloc")
_STATUS, _MACHINE = Path("/proc/self/status"), Path("/proc/meminfo")


def resident_mebibytes() -> float:
    """Memory that the process uses now, in MiB; 0 on systems without `/proc`.

    >>> resident_mebibytes() >= 0
    True
    """
    return _field(_STATUS, "VmRSS")


def peak_mebibytes() -> float:
    """Largest memory that the process has used so far, in MiB; 0 on systems without `/proc`.

    >>> peak_mebibytes() >= resident_mebibytes()
    True
    """
    return _field(_STATUS, "VmHWM")


def available_mebibytes() -> float:
    """Memory that new work on this machine can use, in MiB; infinite on systems without `/proc`.

    >>> available_mebibytes() > 0
    True
    """
    return _field(_MACHINE, "MemAvailable") or math.inf


def _field(file: Path, name: str) -> float:
    """A size in a file of `/proc`, in MiB; 0 if there is no such file."""
    if not file.is_file():
        return 0.0
    fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(fields[name].split()[0]) / 1024


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python or of a torch allocator means that memory ran out.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    >>> out_of_memory(RuntimeError("shapes differ"))
    False
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(words in text for words in _EXHAUSTED)
    )
