"""Plain language: phrases that are not used in code and documentation, and names that occur once in the package.

Add a phrase only if it has no legitimate use. Spaces in a pattern also match line breaks.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "nearkin"
TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "src", "docs", "examples", "benchmarks")
SUFFIXES = {".py", ".md", ".html", ".css", ".js"}
OLD_NAMES = PACKAGE / "_moved.py"
SHARED_MODULES = {"__init__", "registry"}

PHRASES = {
    r"data of the choice": "the validation set",
    r"(?:out of|in|leaves|every room of) the house|the house(?:'s| is)": "export, built-in, the project",
    r"(?:every|this|each|another)(?: later| other)? room|has rooms": "package",
    r"foretell\w*|foretold": "predict",
    r"blind(?:ly)? guess\w*": "majority class",
    r"mend(?:s|ed|ing)?": "fix",
    r"dear(?:er|est)?": "expensive",
    r"where nothing is said": "(default: …)",
    r"minutes of the whole": "total time in minutes",
    r"what (?:[\w'-]+ ){1,5}c(?:ame|omes?) to": "result of …",
    r"what (?:[\w'-]+ ){1,5}(?:is|are) worth": "score, accuracy",
    r"(?:is|are|was|were) told": "receives, is reported",
    r"in the making": "unfinished",
    r"heads? sorts?": "the classifier assigns",
    r"go(?:es|ing)? on where|went on where": "resume",
    r"of (?:its|their) own accord": "automatically",
    r"held against": "compared with",
    r"br(?:ings?|inging|ought) up": "migrate, raise",
    r"usual ways|ways? of (?:transfer|search|solving)": "methods",
    r"in fast motion": "short fine-tuning run",
    r"certainty is earned": "calibration",
    r"hangs? the command": "register the command",
    r"told apart": "distinguishable",
    r"anew": "again",
    r"(?:test|training) parts?": "test set, training set",
    r"yardsticks?": "reference",
}
"""What to write instead, by the pattern of a phrase."""

PATTERNS = {
    re.compile(rf"\b(?:{phrase})\b".replace(" ", r"[\s#]+"), re.IGNORECASE): instead
    for phrase, instead in PHRASES.items()
}


def texts() -> Iterator[Path]:
    for name in TEXTS:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.suffix in SUFFIXES and file != OLD_NAMES)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def repeated(places: dict[str, list[str]]) -> str:
    return "\n".join(f"{name}: {', '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1)


def test_no_phrase_that_readers_must_guess() -> None:
    lines = []
    for file in texts():
        text = file.read_text(encoding="utf-8")
        for pattern, instead in PATTERNS.items():
            for match in pattern.finditer(text):
                line, phrase = text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())
                lines.append(f"{file.relative_to(ROOT)}:{line}: {phrase!r}; write {instead!r} instead")
    if lines:
        pytest.fail("\n".join(sorted(lines)), pytrace=False)


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    if message := repeated(places):
        pytest.fail(f"rename one of the classes of the same name:\n{message}", pytrace=False)


def test_module_names_are_unique() -> None:
    """Modules of `cli` have the names of their commands, and several packages have a `registry`."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        if file.stem not in SHARED_MODULES and file.parent.name != "cli":
            places[file.stem].append(str(file.relative_to(PACKAGE)))
    if message := repeated(places):
        pytest.fail(f"rename one of the modules of the same name:\n{message}", pytrace=False)


@pytest.mark.parametrize(
    ("text", "matches"),
    [("the data of\n    # the choice", True), ("What a search came to.", True), ("He came to a halt", False)],
)
def test_patterns_match_over_line_breaks(text: str, matches: bool) -> None:
    assert any(pattern.search(text) for pattern in PATTERNS) == matches
