"""Licences of adopted models: which ones restrict use, in words for a warning."""

import re

_RESTRICTED = (
    (r"non[- ]?commercial|\bnc\b", "forbids commercial use"),
    (r"research[- ]only|research use|academic", "allows research only"),
    (r"no[- ]?deriv|\bnd\b", "forbids derived models"),
    (r"proprietary|all rights reserved|confidential|internal use", "gives no right to use it"),
    (r"\bllama|gemma|openrail|\brail\b|custom|\bother\b", "has conditions of its own"),
    (r"\ba?gpl", "asks that derived works have the same licence"),
)


def licence_caution(name: str, licence: str) -> str:
    """A warning about a licence that restricts use, or that is not stated; empty for other licences.

    >>> licence_caution("bert", "apache-2.0")
    ''
    >>> licence_caution("bert", "cc-by-nc-4.0")
    "the licence of 'bert' (cc-by-nc-4.0) forbids commercial use; read it before you use the model"
    """
    if not licence.strip():
        return f"no licence is stated for '{name}'; ask its author before you use or share it, and note it: --licence"
    words = licence.lower().replace("_", "-")
    for pattern, meaning in _RESTRICTED:
        if re.search(pattern, words.replace("-", " ")) or re.search(pattern, words):
            return f"the licence of '{name}' ({licence}) {meaning}; read it before you use the model"
    return ""
