"""How much memory the process holds, and what to say when there is no more."""

from pathlib import Path

_EXHAUSTED = ("can't allocate memory", "cannot allocate memory", "out of memory", "not enough memory", "bad_alloc")
_STATUS = Path("/proc/self/status")


def resident_mebibytes() -> float:
    """Memory that the process holds now, in MiB; 0 where the system does not tell.

    >>> resident_mebibytes() >= 0
    True
    """
    if not _STATUS.is_file():
        return 0.0
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's own, or one of torch's allocators.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    >>> out_of_memory(RuntimeError("shapes differ"))
    False
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(words in text for words in _EXHAUSTED)
    )
