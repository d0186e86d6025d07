"""Addresses of zoos and of their files: folders, or URLs that may hold a password."""

import re
from urllib.parse import unquote, urlsplit, urlunsplit

SHARED = ("postgresql://", "postgres://")
_SECRET = re.compile(r"pass|secret|token|credential|signature|sig$|key", re.IGNORECASE)


def is_shared(address: str) -> bool:
    """Whether a zoo is in a database server, and not in a folder.

    >>> is_shared("postgresql://db.example.org/tasks"), is_shared("nearkin-zoo")
    (True, False)
    """
    return address.startswith(SHARED)


def without_secrets(address: str) -> str:
    """An address without its password and without the parameters whose names say that they are secret.

    The user of a database is kept, because the address stays usable with it; in other URLs user and password are both
    left out. An address that is not a URL is returned as it is.

    >>> without_secrets("postgresql://ann:pw@db.example.org/tasks?password=pw&sslmode=require")
    'postgresql://ann@db.example.org/tasks?sslmode=require'
    >>> without_secrets("s3://key:secret@bucket/zoo")
    's3://bucket/zoo'
    """
    if "://" not in address:
        return address
    scheme, _, rest = address.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" not in authority and ":" in authority and "@" in rest:  # a password with one of / ? #, not encoded
        rest = rest.partition(":")[0] + "@" + rest.rpartition("@")[2]
    try:
        url = urlsplit(f"url://{rest}")
    except ValueError:
        return f"{scheme}://…"
    user, at, host = url.netloc.rpartition("@")
    user = user.partition(":")[0] if is_shared(address) else ""
    pairs = [pair for pair in url.query.split("&") if pair and not _SECRET.search(unquote(pair.partition("=")[0]))]
    bare = urlunsplit(("", f"{user}@{host}" if at and user else host, url.path, "&".join(pairs), url.fragment))
    return f"{scheme}:{bare if bare.startswith('//') else f'//{bare}'}"
