"""Text files in one folder per class, `DIR/class/*.txt`: text classification."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nearkin.core.errors import DataError
from nearkin.tasks.readers.language import text_content
from nearkin.tasks.table_examples import read_table
from nearkin.tasks.task import Task

ENDINGS = (".txt", ".txt.gz")
TEXT, CLASS = "text", "class"
"""Names of the two columns of the table that the files become."""


def document_paths(folder: Path) -> list[Path]:
    """Text files below a folder in order of path, without hidden files and folders."""
    paths = [path for path in folder.rglob("*") if path.name.lower().endswith(ENDINGS) and path.is_file()]
    return sorted(path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts))


def document_cells(paths: Sequence[Path]) -> dict[str, list[str]]:
    """The contents of text files as the column `text` of a table."""
    return {TEXT: [text_content(path) for path in paths]}


def read_documents(root: Path, train: Sequence[Path], test: Sequence[Path], raw: bool = False) -> Task:
    """A task from class folders of text files; without test folders a fifth of each class is the test set.

    The texts are encoded as a table of words, or kept as they are (`raw`).
    """
    splits = [_table(folders) for folders in (train, test) if folders]
    examples = read_table(
        str(root), splits[0], [CLASS], splits[1] if test else None, likelihood="categorical", raw=TEXT if raw else None
    )
    return Task.of(root.resolve().name, **examples._asdict())


def _table(folders: Sequence[Path]) -> Mapping[str, Sequence[str]]:
    paths = {folder.name: document_paths(folder) for folder in folders}
    empty = [name for name, files in paths.items() if not files]
    if empty:
        raise DataError(f"class folder {empty[0]} has no text files ({', '.join(ENDINGS)}); add some or remove it")
    files = [file for listed in paths.values() for file in listed]
    return {**document_cells(files), CLASS: [name for name, listed in paths.items() for _ in listed]}
