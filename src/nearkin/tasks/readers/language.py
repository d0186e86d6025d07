"""Language-model tasks from text files: tokens, vocabulary, and windows of a token stream."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.opening import local_path, read_file
from nearkin.tasks.datastring import one_of, whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Windows
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("length", "level", "vocabulary")

END, UNKNOWN = "<eos>", "<unk>"
WINDOW = 35  # tokens, as usual for recurrent networks on Penn Treebank
TOKEN_COST = 10  # bytes of memory per byte of text that is split into words or cells
TRAIN_SHARE = 0.9  # of a text in one file
ENDINGS = (".txt", ".tokens", ".raw")
SPLIT = re.compile(r"(?:^|[^a-z])(train|valid|val|test)")


def read(location: str, options: Mapping[str, str]) -> Task:
    """A language-model task from a folder with train, valid and test files, or from one file, split 90 to 10.

    Args:
        location: a text file, or a folder whose files have train, valid (or val) and test in their names.
        options: `length=35` tokens per window, `level=word` or `level=char`, `vocabulary=N` words at most.
    """
    path = local_path(location)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; name one of .txt or .txt.gz files")
    train, test = _split_files(path) if path.is_dir() else (path, None)
    name = path.resolve().name if path.is_dir() else plain_stem(path)
    return language_task(name, text_content(train), None if test is None else text_content(test), options)


def language_task(name: str, train: str, test: str | None, options: Mapping[str, str]) -> Task:
    r"""The task to predict each token of a text from the tokens before; without a test text, the last tenth is one.

    >>> task = language_task("song", "la la li\n" * 9, "la lo\n" * 2, {"length": "4"})
    >>> task.classes, task.train.inputs.take(torch.tensor([0])), task.train.targets.take(torch.tensor([0]))
    (('la', '<eos>', 'li', '<unk>'), tensor([[0, 0, 2, 1]]), tensor([[0, 2, 1, 0]]))
    """
    length = whole(options.get("length") or str(WINDOW), "length", least=1)
    level = options.get("level") or "word"
    train_tokens = tokens(train, level)
    if test is None:
        cut = int(len(train_tokens) * TRAIN_SHARE)
        train_tokens, test_tokens = train_tokens[:cut], train_tokens[cut:]
    else:
        test_tokens = tokens(test, level)
    limit = whole(options["vocabulary"], "vocabulary", least=2) if "vocabulary" in options else None
    words = vocabulary(train_tokens, test_tokens, limit)
    examples = []
    for split, stream in (("training", train_tokens), ("test", test_tokens)):
        if len(stream) <= length:
            needed = f"a window needs {length + 1}"
            raise DataError(f"{name}: the {split} text has {len(stream)} tokens, {needed}; add text or set ?length=")
        numbers = token_numbers(stream, words)
        examples.append(Examples(Windows(numbers, length, 0), Windows(numbers, length, 1)))
    return Task.of(name, *examples, likelihood="language", classes=words, standardise=False)


def tokens(text: str, level: str) -> Sequence[str]:
    r"""Words with an end mark after every line, or characters.

    >>> tokens("to be\nor not", "word")
    ['to', 'be', '<eos>', 'or', 'not', '<eos>']
    """
    if one_of(level, "level", ("word", "char")) == "char":
        return text
    ended = text if text.endswith("\n") or not text else text + "\n"
    return ended.replace("\n", f" {END} ").split()


def vocabulary(train: Sequence[str], test: Sequence[str], limit: int | None = None) -> tuple[str, ...]:
    """Tokens of the training text by frequency, then by alphabet.

    The unknown word is added if the test text has other tokens, or if there are more than `limit` words; then it
    replaces the rarest words.

    >>> vocabulary("abacab", "ab"), vocabulary("abacab", "bad"), vocabulary("abacab", "ab", limit=2)
    (('a', 'b', 'c'), ('a', 'b', 'c', '<unk>'), ('<unk>', 'a'))
    """
    counts = Counter(train)
    if not counts.keys() >= set(test):
        counts[UNKNOWN] += 0
    if limit is not None and len(counts) > limit:
        words = [word for word in sorted(counts, key=lambda word: (-counts[word], word)) if word != UNKNOWN]
        kept = {word: counts[word] for word in words[: limit - 1]}
        counts = Counter({**kept, UNKNOWN: len(train) - sum(kept.values())})
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def token_numbers(stream: Sequence[str], words: Sequence[str]) -> Tensor:
    """Positions `[T]` of the tokens in the vocabulary; other tokens have that of the unknown word.

    >>> token_numbers(["b", "x"], ["<unk>", "a", "b"])
    tensor([2, 0])
    """
    number = {word: position for position, word in enumerate(words)}
    unknown = number.get(UNKNOWN, 0)
    positions = np.fromiter((number.get(token, unknown) for token in stream), np.int64, count=len(stream))
    return torch.from_numpy(positions)


def text_content(path: Path) -> str:
    """The UTF-8 text of a file, plain or `.gz`, with line ends of one kind."""
    try:
        return read_file(path, TOKEN_COST).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def plain_stem(path: Path) -> str:
    """Name of a file without `.gz` and without its ending."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _split_files(folder: Path) -> tuple[Path, Path | None]:
    """The training and test file; a plain file goes before its compressed copy."""
    listed = sorted(folder.iterdir(), key=lambda path: (path.suffix == ".gz", path.name), reverse=True)
    files = {path.name.removesuffix(".gz"): path for path in listed if path.is_file()}
    files = {name: files[name] for name in sorted(files) if name.endswith(ENDINGS)}
    splits: dict[str, list[Path]] = {}
    for name, path in files.items():
        match = SPLIT.search(name.lower())
        splits.setdefault(match.group(1).replace("valid", "val") if match else "", []).append(path)
    shown = ", ".join(files) or "none"
    if "train" not in splits:
        if len(files) != 1:
            raise DataError(
                f"{folder} has {len(files)} text files ({shown}) and none with train in its name; name them train.txt, "
                f"valid.txt, test.txt, or name one file"
            )
        return next(iter(files.values())), None
    for split in ("train", "test" if "test" in splits else "val"):
        if len(splits.get(split, [])) > 1:
            raise DataError(f"{folder} has several {split} files ({shown}); keep one of each, or name one file")
    test = splits.get("test") or splits.get("val")
    return splits["train"][0], test[0] if test else None
