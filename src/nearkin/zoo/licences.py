"""Licences of models: which ones permit use, and what is known of the others, in words for a warning."""

import re

_PERMISSIVE = re.compile(
    r"(0?bsd(-[1-4]-clause[a-z-]*)?|afl-3\.0|apache(-?2(\.0)?)?|artistic-2\.0|blueoak-1\.0\.0|bsl-1\.0"
    r"|cc-by(-\d\.\d)?|cc0(-1\.0)?|cdla-permissive-[12]\.0|ecl-2\.0|epl-[12]\.0|isc|lgpl(-[23](\.\d)?)?|mit(-0)?|mpl(-2\.0)?|ms-pl"
    r"|ncsa|odc-by(-1\.0)?|pddl(-1\.0)?|postgresql|psf(-2\.0)?|public-domain|unlicense|upl-1\.0|wtfpl|zlib)"
    r"(-only|-or-later)?"
)
"""Licences that permit use for any purpose; some ask for the source code of changed files if they are shared."""

_UNSTATED = ("", "-", "?", "n/a", "na", "no", "none", "no-license", "not-stated", "null", "unknown", "unspecified")
_RESTRICTED = (
    (r"non[- ]?commercial|\bnc\b", "forbids commercial use"),
    (r"\bresearch\b|academic|\bamlr\b", "may allow research only"),
    (r"no[- ]?deriv|\bnd\b", "forbids derived models"),
    (r"proprietary|all rights reserved|confidential|internal use|unlicensed", "gives no right to use it"),
    (r"\bllama|gemma|openrail|\brail\b|custom|\bother\b", "has conditions of its own"),
    (r"gpl|\bsa\b|eupl|odbl|osl", "asks that derived works have the same licence"),
)


def licence_caution(name: str, licence: str) -> str:
    """A warning about a licence that restricts use or is not known; empty for licences that are known to permit it.

    >>> licence_caution("bert", "apache-2.0")
    ''
    >>> licence_caution("bert", "cc-by-nc-4.0")
    "the licence of 'bert' (cc-by-nc-4.0) forbids commercial use; read it before you use the model"
    """
    words = re.sub(r"[\s_]+", "-", licence.strip().lower())
    if words in _UNSTATED:
        return f"no licence is stated for '{name}'; ask its author before you use or share it, and note it: --licence"
    short = re.sub(r"\bthe-|-licen[sc]e\b|,?-version\b", "", words)
    names = re.split(r"[,/]-?|-and-|-or-(?!later)", short)
    if all(_PERMISSIVE.fullmatch(word) for word in names if word):
        return ""
    spaced = words.replace("-", " ")
    known = (meaning for pattern, meaning in _RESTRICTED if re.search(pattern, spaced) or re.search(pattern, words))
    meaning = next(known, "is not known to permit every use")
    return f"the licence of '{name}' ({licence}) {meaning}; read it before you use the model"
