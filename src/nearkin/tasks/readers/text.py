"""Language modelling from text files: tokens, a vocabulary, and windows of one stream."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path, read_file
from nearkin.tasks.datastring import whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Windows
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("length", "level", "vocabulary")

END, UNKNOWN = "<eos>", "<unk>"
WINDOW = 35  # tokens: the customary unrolling of recurrent networks on Penn Treebank
TOKEN_COST = 10  # bytes of memory for each byte of text, once it is split into words or cells
TRAIN_SHARE = 0.9  # of a text that comes in one file
ENDINGS = (".txt", ".tokens", ".raw")
PART = re.compile(r"(?:^|[^a-z])(train|valid|val|test)")


def read(location: str, options: Mapping[str, str]) -> Task:
    """A language-model task from a folder with train, valid and test files, or from one file, cut 90 to 10.

    Args:
        location: a text file, or a folder whose files have train, valid (or val) and test in their names.
        options: `length=35` tokens a window, `level=word` or `level=char`, `vocabulary=N` words at the most.
    """
    path = local_path(location)
    require(path.exists(), f"there is no file or folder {path}; text wants .txt or .txt.gz files", DataError)
    train, test = _parts(path) if path.is_dir() else (path, None)
    name = path.resolve().name if path.is_dir() else _plain_name(path).rsplit(".", 1)[0]
    return language_task(name, content(train), None if test is None else content(test), options)


def language_task(name: str, train: str, test: str | None, options: Mapping[str, str]) -> Task:
    r"""The task of predicting each token of a text from those before it; the last tenth judges where no test is given.

    >>> task = language_task("song", "la la li\n" * 9, "la lo\n" * 2, {"length": "4"})
    >>> task.classes, task.train.inputs.take(torch.tensor([0])), task.train.targets.take(torch.tensor([0]))
    (('la', '<eos>', 'li', '<unk>'), tensor([[0, 0, 2, 1]]), tensor([[0, 2, 1, 0]]))
    """
    length = whole(options.get("length") or str(WINDOW), "length", least=1)
    learned = tokens(train, options.get("level") or "word")
    if test is None:
        cut = int(len(learned) * TRAIN_SHARE)
        learned, judged = learned[:cut], learned[cut:]
    else:
        judged = tokens(test, options.get("level") or "word")
    limit = whole(options["vocabulary"], "vocabulary", least=2) if "vocabulary" in options else None
    words = vocabulary(learned, judged, limit)
    parts = []
    for part, stream in (("training", learned), ("test", judged)):
        require(
            len(stream) > length,
            f"{name}: the {part} text has {len(stream)} tokens, a window wants {length + 1}; add text or set ?length=",
            DataError,
        )
        numbers = token_numbers(stream, words)
        parts.append(Examples(Windows(numbers, length, 0), Windows(numbers, length, 1)))
    return Task.of(name, parts[0], parts[1], likelihood="language", classes=words, standardise=False)


def tokens(text: str, level: str) -> Sequence[str]:
    r"""Words with an end mark after every line, or characters.

    >>> tokens("to be\nor not", "word")
    ['to', 'be', '<eos>', 'or', 'not', '<eos>']
    """
    if level == "char":
        return text
    if level != "word":
        raise OptionError(f"level must be word or char, got {level!r}")
    ended = text if text.endswith("\n") or not text else text + "\n"
    return ended.replace("\n", f" {END} ").split()


def vocabulary(learned: Sequence[str], judged: Sequence[str], limit: int | None = None) -> tuple[str, ...]:
    """Tokens of the training text, the commonest first, then by alphabet.

    The unknown word is added where the test text needs it, or where more than `limit` words would be left; it stands
    for the rarest then.

    >>> vocabulary("abacab", "ab"), vocabulary("abacab", "bad"), vocabulary("abacab", "ab", limit=2)
    (('a', 'b', 'c'), ('a', 'b', 'c', '<unk>'), ('<unk>', 'a'))
    """
    counts = Counter(learned)
    if not counts.keys() >= set(judged):
        counts[UNKNOWN] += 0
    if limit is not None and len(counts) > limit:
        kept = [word for word in sorted(counts, key=lambda word: (-counts[word], word)) if word != UNKNOWN][: limit - 1]
        counts = Counter({word: counts[word] for word in kept} | {UNKNOWN: len(learned) - sum(counts[w] for w in kept)})
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def token_numbers(stream: Sequence[str], words: Sequence[str]) -> Tensor:
    """Positions `[T]` of the tokens in the vocabulary; strangers get the unknown word's.

    >>> token_numbers(["b", "x"], ["<unk>", "a", "b"])
    tensor([2, 0])
    """
    number = {word: position for position, word in enumerate(words)}
    unknown = number.get(UNKNOWN, 0)
    found = np.fromiter((number.get(token, unknown) for token in stream), np.int64, count=len(stream))
    return torch.from_numpy(found)


def content(path: Path) -> str:
    """The text of a file, plain or `.gz`, as UTF-8 with line ends of one kind."""
    try:
        return read_file(path, TOKEN_COST).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as fault:
        raise DataError(f"{path} is not UTF-8 text (byte {fault.start}); save it as UTF-8") from fault


def _plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The files to learn from and to judge by; a plain file goes before its compressed copy."""
    listed = sorted(folder.iterdir(), key=lambda path: (path.suffix == ".gz", path.name), reverse=True)
    files = {_plain_name(path): path for path in listed if path.is_file() and _plain_name(path).endswith(ENDINGS)}
    roles: dict[str, list[Path]] = {}
    for name in sorted(files):
        match = PART.search(name.lower())
        roles.setdefault(match.group(1).replace("valid", "val") if match else "", []).append(files[name])
    shown = ", ".join(sorted(files)) or "none"
    if "train" not in roles:
        require(
            len(files) == 1,
            f"{folder} has {len(files)} text files ({shown}) and none with train in its name; name them train.txt, "
            f"valid.txt, test.txt, or give one file",
            DataError,
        )
        return next(iter(files.values())), None
    for role in ("train", "test" if "test" in roles else "val"):
        require(
            len(roles.get(role, [])) <= 1,
            f"{folder} has several {role} files ({shown}); keep one of each, or give one file",
            DataError,
        )
    judged = roles.get("test") or roles.get("val")
    return roles["train"][0], judged[0] if judged else None
