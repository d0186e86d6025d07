"""What a command shows: its answer on stdout, everything else on stderr."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import typer

from nearkin.core.errors import ZooError, require
from nearkin.core.events import Caution, Checkpoint, Event, Listener, Note, Progress, Work, finish
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from rich import console as consoles
    from rich import markup
    from rich import progress as bars
    from rich import table as tables

    from nearkin.core.options import Option
    from nearkin.run import journal
else:
    consoles, markup, tables, bars, journal = map(
        Lazy, ("rich.console", "rich.markup", "rich.table", "rich.progress", "nearkin.run.journal")
    )

T = TypeVar("T")

LINE_SECONDS = 5.0  # between two progress lines where stderr is no terminal
TABLE_ROWS = 300  # a longer table is printed as plain columns: it is read by a pager or a program
UNSEEN = ("demo", "doctor", "train")  # commands that do not work on the zoo, and have no place in its journal


Restart = Annotated[
    bool, typer.Option("--restart", help="Discard what an interrupted run of this command left, and begin again.")
]
Resume = Annotated[bool, typer.Option("--resume", hidden=True, help="No effect: the same command continues by itself.")]


def named_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """The values of options that are written `name=value`.

    >>> named_values(["order=2", "exact=false"])
    {'order': '2', 'exact': 'false'}
    """
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        require(bool(name and equals), f"--option is written name=value, got {pair!r}")
        require(name not in found, f"option {name} is given twice; give it once")
        found[name] = value
    return found


def note_resume(given: bool) -> None:
    """Say that `--resume`, which earlier versions needed, has no effect."""
    if given:
        print("--resume has no effect: the same command continues by itself; --restart begins again", file=sys.stderr)


class Interrupted(BaseException):
    """The user asked to stop; no error, and no `except Exception` is meant to catch it."""


def raise_interrupted(number: int, frame: FrameType | None) -> None:
    """End a command outside of long work, on any of `stop_signals`."""
    raise Interrupted


def stop_signals() -> list[signal.Signals]:
    """Signals that ask a command to stop; one that the caller had ignored (nohup ignores SIGHUP) stays ignored."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return asked


@dataclass(frozen=True)
class Settings:
    """The global options of one call."""

    zoo: str
    seed: int
    device: str
    quiet: bool
    debug: bool

    @property
    def zoo_path(self) -> str:
        """The folder of the zoo; addresses of shared zoos are told apart here."""
        require(
            "://" not in self.zoo,
            f"{self.zoo} is the address of a shared zoo, which this version does not open; give the path of a folder",
            ZooError,
        )
        return self.zoo


def answer(values: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """The one answer of a command: a JSON object, or whatever `show` prints."""
    if as_json:
        sys.stdout.write(json.dumps(values, allow_nan=False, default=str) + "\n")
        sys.stdout.flush()
    else:
        show()


def say(text: str) -> None:
    """A line of the answer, on stdout, in rich's markup: names of the user go through `escape`."""
    consoles.Console(highlight=False, soft_wrap=True).print(text)


def escape(text: str) -> str:
    """Text in which nothing is markup."""
    return markup.escape(text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Rows under a head, on stdout; columns named in `right` are set flush right."""
    if len(rows) > TABLE_ROWS:
        _plain_columns(head, rows)
        return
    shown = tables.Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=any(head))
    for name in head:
        shown.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    for row in rows:
        shown.add_row(*map(escape, row))
    console = consoles.Console(highlight=False)
    if not console.is_terminal:  # no terminal limits the width
        console = consoles.Console(highlight=False, width=200)
    console.print(shown)


def show_options(owner: str, options: "Sequence[Option]") -> None:
    """The options of a measure or a search method with their defaults; nothing where it has none."""
    rows = [(option.name, str(option.default).lower(), option.summary) for option in options]
    if rows:
        say("")
        table([f"option of {owner}", "default", ""], rows)


def _plain_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def run(work: Work[T], settings: Settings, *listeners: Listener) -> T:
    """Finish long work with its progress shown; Ctrl-C stops it at its next checkpoint, a second one at once."""
    with _patient_interrupt() as interrupted, _display(settings) as show, _journal(settings) as note_down:

        def listen(event: Event) -> None:
            show(event)
            for other in (*note_down, *listeners):
                other(event)
            if interrupted() and isinstance(event, Checkpoint):
                raise Interrupted

        return finish(work, listen)


@contextmanager
def _journal(settings: Settings) -> Iterator[list[Listener]]:
    """What `nearkin serve` shows of a command at work; none of commands that do not work on the zoo."""
    command = click.get_current_context(silent=True)
    if command is None or command.info_name in UNSEEN or "://" in settings.zoo:
        yield []
        return
    with journal.write_journal(Path(settings.zoo), sys.argv[1:]) as note_down:
        yield [note_down]


@contextmanager
def _patient_interrupt() -> Iterator[Callable[[], bool]]:
    """The first of the stop signals sets a flag, the second interrupts at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise Interrupted
        asked = True

    kept = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield lambda: asked
    finally:
        for number, old in kept.items():
            signal.signal(number, old)


@contextmanager
def _display(settings: Settings) -> Iterator[Listener]:
    """Bars on a terminal, lines elsewhere, only warnings when quiet."""
    console = consoles.Console(stderr=True, highlight=False)
    if settings.quiet or not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield _Lines(quiet=settings.quiet)
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.TextColumn("{task.fields[figures]}"),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=console, transient=True) as shown:
        stages: dict[str, bars.TaskID] = {}

        def show(event: Event) -> None:
            if isinstance(event, Progress):
                if event.stage not in stages:
                    for old in stages.values():
                        shown.update(old, visible=False)
                    stages[event.stage] = shown.add_task(event.stage, total=event.total, figures="")
                shown.update(stages[event.stage], completed=event.done, figures=_figures(event))
            elif isinstance(event, Note):
                console.print(event.text, style="dim", markup=False)
            elif isinstance(event, Caution):
                console.print(f"warning: {event.text}", style="yellow", markup=False)

        yield show


class _Lines:
    """Plain lines on stderr: notes at once, progress every few seconds and at the end of a stage."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.last = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Caution):
            print(f"warning: {event.text}", file=sys.stderr)
        elif self.quiet or isinstance(event, Checkpoint):
            return
        elif isinstance(event, Note):
            print(event.text, file=sys.stderr)
        elif event.done == event.total or time.monotonic() - self.last > LINE_SECONDS:
            self.last = time.monotonic()
            total = f"/{event.total}" if event.total is not None else ""
            print(f"{event.stage} {event.done}{total} {_figures(event)}".rstrip(), file=sys.stderr)


def _figures(event: Progress) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in event.values.items())
