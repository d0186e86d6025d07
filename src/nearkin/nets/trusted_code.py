"""Decide which code may be imported to build a network.

A network string `package.module:Name` or `path/to/file.py:Name` names code. Users type such strings, but strings are
also read from zoos, bundles and model files. To import what a file names would run code that the author of the file
chose. Therefore code is imported only if it is trusted on this machine. Trusted are

- nearkin's own networks: those without an import path, and `OWN`;
- modules and files that the user named: `nearkin --trust NAME`, `$NEARKIN_TRUST`, `nk.trust(NAME)`;
- networks that the user typed, or whose class the user passed, in this process: `trust_network`;
- networks with which this user added a task or trained a model before: `remember` stores their names in the user's
  configuration folder, together with the SHA-256 of a file's content.

Trust is never written to a zoo, a bundle or a model file, and never read from one.
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from nearkin.core.errors import DataError, NearkinError, OptionError, require
from nearkin.core.files import write_durably
from nearkin.nets.adopted_spec import ADOPTED, adopted_spec

SEARCHED = "nearkin.search.named:searched"
TANGENT_MACHINE = "nearkin.transfer.machine:tangent_machine"
ENSEMBLE = "nearkin.solver.ensemble:ensemble"
SIMPLE = "nearkin.solve.simple.machines"
_MACHINES, _TREES = "nearkin.solver.simple.machines", "nearkin.solver.simple.tree_machines"
OWN = {
    SEARCHED: "nearkin.search.networks.named:searched",
    TANGENT_MACHINE: TANGENT_MACHINE,
    ENSEMBLE: ENSEMBLE,
    ADOPTED: ADOPTED,
    **{f"{SIMPLE}:{name}": f"{_MACHINES}:{name}" for name in ("kernel_machine", "linear_machine")},
    **{f"{SIMPLE}:{name}": f"{_TREES}:{name}" for name in ("averaged_trees", "boosted_trees")},
}
"""Networks that nearkin itself writes into files: searched networks and the models of `solve` and `transfer`.

The key is stored in files and never changes; the value is the current import path.
"""

VARIABLE = "NEARKIN_TRUST"
MAX_BYTES = 2**20  # of the file of remembered networks
SHOWN = 1000  # characters of a network string in an error

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_process: set[str] = set()  # modules, files, and networks as `module:Name` or `file.py:Name`


class TrustError(NearkinError):
    """Error: a network needs code that is not trusted on this machine."""


def trust(*names: str) -> None:
    """Allow networks of modules or files to be built in this process, also if their names come from a file.

    Args:
        names: a package or module with its submodules, the path of a `.py` file, or one network, `module:Name`.

    >>> trust("os system")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: cannot trust 'os system'; name a package or module, the path of a .py file, or \
one network as module:Name
    """
    _process.update([_entry(name) for name in names])


def trust_network(network: str) -> None:
    """Allow one network to be built in this process; for strings that the user typed, not for strings from files."""
    name = _code(network)
    if name is not None:
        _process.add(absolute(name))


def is_trusted(network: str) -> bool:
    """Whether the network of this string may be built; nothing is imported.

    >>> is_trusted("lenet?width=0.5"), is_trusted("os:system?command=date")
    (True, False)
    """
    name = _code(network)
    return name is None or _allowed(name)


def is_named(network: str) -> bool:
    """Whether this network itself is trusted, not only its module."""
    name = absolute(network)
    return name in OWN or name in _names() or _is_remembered(name)


def is_trusted_module(module: str) -> bool:
    """Whether all code of a module is trusted."""
    parts = module.split(".")
    return any(".".join(parts[:count]) in _names() for count in range(1, len(parts) + 1))


def refusal(network: str) -> str:
    """Why the network of this string is not built, and what to do; "" if it is trusted."""
    name = _code(network)
    if name is None or _allowed(name):
        return ""
    shown, origin = repr(name[:SHOWN]), name.rpartition(":")[0][:SHOWN]
    try:
        _entry(name)
    except OptionError:
        return f"network {shown} names no code; expected package.module:Name or path/to/file.py:Name"
    remembered, problem = _remembered()
    if absolute(name) in remembered:
        problem = f"{origin} has changed since you used it"
    return (
        f"network {shown} needs code of {origin}, which is not trusted on this machine"
        f"{f', and {problem}' if problem else ''}; if you trust it: nearkin --trust {shlex.quote(origin)} …, in Python "
        f"nk.trust({origin!r})"
    )


def require_trusted(network: str) -> None:
    """Refuse a network that needs code that is not trusted."""
    reason = refusal(network)
    require(not reason, reason, TrustError)


def exported() -> dict[str, str]:
    """Environment variable that gives the trust of this process to a process that it starts."""
    return {VARIABLE: ",".join(sorted(name for name in _names() if "," not in name))}


def remember(network: str) -> str:
    """Store on this machine that the user built this network; returns "", or a warning if it cannot be stored.

    Only networks that `trust_network` allowed are stored, not one that was read from a zoo with `--trust`.
    """
    code = _code(network)
    name = None if code is None else absolute(code)
    if name is None or name not in _process:
        return ""
    try:
        path = _file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path.with_name(f"{path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            networks, problem = _remembered()
            networks[name] = _digest(name)
            content = json.dumps({"version": 1, "networks": networks}, indent=1, sort_keys=True)
            write_durably(path, content.encode())
            path.chmod(0o600)
    except (OSError, NearkinError) as refused:
        return f"cannot remember that you trust {name[:SHOWN]} ({refused}); later commands need --trust"
    return f"{problem}; it was replaced by a list with only {name[:SHOWN]}" if problem else ""


def absolute(name: str) -> str:
    """The name with the absolute path of its file, without symbolic links; other names unchanged."""
    path, colon, attribute = (name, "", "") if name.endswith(".py") else name.rpartition(":")
    if not path.endswith(".py"):
        return name
    try:
        return os.path.realpath(path) + colon + attribute
    except ValueError:  # a character that no path can contain
        return name


def _entry(name: str) -> str:
    """A name that can be trusted, with the absolute path of a file."""
    origin, _, attribute = (name, "", "") if name.endswith(".py") or ":" not in name else name.rpartition(":")
    module = "file" if origin.endswith(".py") and "\0" not in origin else origin
    require(
        bool(_NAME.fullmatch(module) and _NAME.fullmatch(attribute or "whole")),
        f"cannot trust {name[:SHOWN]!r}; name a package or module, the path of a .py file, or one network as "
        f"module:Name",
    )
    return absolute(name)


def member_networks(network: str) -> tuple[str, ...]:
    """Network strings of the members of an ensemble; the network itself if it is none.

    >>> member_networks("mlp"), member_networks(f"{ENSEMBLE}?classes=true&members=mlp%3Fhidden%3D8,lenet")
    (('mlp',), ('mlp?hidden=8', 'lenet'))
    """
    name, _, rest = network.strip().partition("?")
    if name != ENSEMBLE:
        return (network,)
    options = dict(option.partition("=")[::2] for option in rest.split("&"))
    return tuple(map(unquote, options.get("members", "").split(",")))


def _code(network: str) -> str | None:
    """The import path outside nearkin that a network string needs; None if it needs none."""
    name, _, rest = network.strip().partition("?")
    if name == ADOPTED:  # it may use another network
        try:
            spec = adopted_spec(network)
        except DataError:  # such a network cannot be built
            return None
        name = "" if spec is None else spec.network.strip().partition("?")[0]
    if name in (TANGENT_MACHINE, ENSEMBLE):  # it uses other networks, which are one of its options
        options = dict(option.partition("=")[::2] for option in rest.split("&"))
        if name == ENSEMBLE:
            members = map(_code, member_networks(network))
            return next((code for code in members if code is not None and not _allowed(code)), None)
        name = unquote(options.get("network", "")).strip().partition("?")[0]
    return None if ":" not in name or name in OWN else name


def _allowed(name: str) -> bool:
    origin = absolute(name).rpartition(":")[0]
    return is_named(name) or (origin in _names() if origin.endswith(".py") else is_trusted_module(origin))


def _names() -> set[str]:
    """Names that are trusted in this process."""
    from_environment = filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(",")))
    return _process.union(map(_entry, from_environment))


def _is_remembered(name: str) -> bool:
    networks, _ = _remembered()
    if name not in networks:
        return False
    try:
        return networks[name] == _digest(name)
    except OSError:
        return False


def _digest(name: str) -> str | None:
    """SHA-256 of the file that defines a network; None for a network of a module."""
    origin = name.rpartition(":")[0]
    return hashlib.sha256(_content(Path(origin))).hexdigest() if origin.endswith(".py") else None


def code_digest(network: str) -> str | None:
    """SHA-256 of the file with the code that a network string needs; None if it needs none, or a module.

    >>> code_digest("lenet")
    """
    name = _code(network)
    return None if name is None else _digest(absolute(name))


def _content(path: Path) -> bytes:
    """The bytes of a regular file; anything else, such as a pipe, is refused before it is opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a regular file")
    return path.read_bytes()


def _file() -> Path:
    """The file of remembered networks, in the user's configuration folder."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if os.path.isabs(configured) else Path(os.path.expanduser("~"), ".config")
    return folder / "nearkin" / "trusted.json"


def _remembered() -> tuple[dict[str, str | None], str]:
    """Remembered networks with the digests of their files, and "" or the reason why the list cannot be used."""
    path = _file()
    try:
        status = path.stat()
        require(status.st_uid == os.getuid() and not status.st_mode & 0o022, "others can write to it")
        require(status.st_size <= MAX_BYTES, f"it is longer than {MAX_BYTES:,} bytes")
        return dict(_entries(json.loads(_content(path)))), ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError, NearkinError) as damage:
        return {}, f"the list of trusted networks {path} is not used ({' '.join(str(damage).split())})"


def _entries(content: object) -> Iterator[tuple[str, str | None]]:
    """The networks of a list and their digests; an error if the list has another format."""
    networks = content.get("networks") if isinstance(content, dict) and content.get("version") == 1 else None
    if not isinstance(networks, dict):
        raise OptionError("it contains no networks")
    for name, digest in networks.items():
        require(digest is None or isinstance(digest, str), f"the digest of {name[:SHOWN]!r} is not text")
        yield name, digest
