"""Addresses of zoos and of their files: folders, or URLs that may hold a password."""

import re

_USER = re.compile(r"(://[^/?#\s:@]*):[^/?#\s]*@")
_PARAMETER = re.compile(r"(?i)([\w-]*(?:password|secret|token|key)=)[^&#\s]*")


def is_shared(text: str) -> bool:
    """Whether a zoo is in a PostgreSQL database, and not in a folder.

    >>> is_shared("postgresql+psycopg://db.example.org/tasks"), is_shared("nearkin-zoo")
    (True, False)
    """
    return text.startswith(("postgresql://", "postgresql+psycopg://"))


def without_secrets(text: str) -> str:
    """A text without the passwords and secret parameters of the URLs in it.

    >>> without_secrets("postgresql://ann:pw@db.example.org/tasks?sslmode=require&password=pw")
    'postgresql://ann:…@db.example.org/tasks?sslmode=require&password=…'
    """
    return _PARAMETER.sub(r"\1…", _USER.sub(r"\1:…@", text))
