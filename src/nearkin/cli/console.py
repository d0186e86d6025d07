"""Output of a command: the answer on stdout, progress and warnings on stderr."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import typer

import nearkin as nk
from nearkin.cli.parallel import is_first
from nearkin.core.addresses import without_secrets
from nearkin.core.errors import require
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

LINE_SECONDS = 5.0  # between two progress lines when stderr is not a terminal
TABLE_ROWS = 300  # longer tables are printed as plain columns
STOPPING = b"stopping at the next checkpoint; Ctrl-C again stops at once\n"
NOT_JOURNALED = ("demo", "doctor", "train")  # commands that do not work on the zoo


Restart = Annotated[
    bool, typer.Option("--restart", help="Discard the saved state of an interrupted run, and start again.")
]
Resume = Annotated[bool, typer.Option("--resume", hidden=True, help="No effect: the same command continues by itself.")]


def named_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Options written as `name=value`, as a dict.

    >>> named_values(["order=2", "exact=false"])
    {'order': '2', 'exact': 'false'}
    """
    values: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        require(bool(name and equals), f"got --option {pair!r}, expected name=value")
        require(name not in values, f"option {name} is given twice; give it once")
        values[name] = value
    return values


def note_resume(requested: bool) -> None:
    """Print that `--resume`, which earlier versions needed, has no effect."""
    if requested:
        print("--resume has no effect: the same command continues by itself; --restart starts again", file=sys.stderr)


class Interrupted(BaseException):
    """The user stopped the command; not an error, so `except Exception` does not catch it."""


def raise_interrupted(number: int, frame: FrameType | None) -> None:
    """Signal handler that ends a command at once."""
    raise Interrupted


def stop_signals() -> list[signal.Signals]:
    """Signals that stop a command; SIGHUP only if the caller did not ignore it, as nohup does."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


@dataclass(frozen=True)
class Settings:
    """Global options of one call, and its start in wall time and processor time."""

    zoo: str
    seed: int
    device: str
    quiet: bool
    debug: bool
    workers: int = 1
    blobs: str = ""
    runner: str = "local"
    started: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))

    @property
    def zoo_path(self) -> str:
        """Folder of the zoo, or address of a shared zoo with its secrets."""
        return self.zoo

    @property
    def zoo_name(self) -> str:
        """Folder of the zoo, or address of a shared zoo without secrets, to be printed or stored."""
        return without_secrets(self.zoo)

    def open_zoo(self, create: bool = True) -> "nk.Zoo":
        """Open the zoo, with the runner that does its jobs."""
        return nk.Zoo(self.zoo, create, blobs=self.blobs, workers=self.workers, runner=self.runner)

    def open_catalogue(self, create: bool = True) -> "nk.Catalogue":
        """Open the store of the zoo."""
        return nk.Catalogue(self.zoo, create, blobs=self.blobs)


def command_words() -> list[str]:
    """Words of the running command after `nearkin`, without secrets."""
    return [without_secrets(word) for word in sys.argv[1:]]


def command_text() -> str:
    """The running command as it can be typed, without secrets."""
    return shlex.join(["nearkin", *command_words()])


def answer(values: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """Print the answer of a command: a JSON object, or the output of `show`."""
    if as_json:
        sys.stdout.write(json.dumps(values, allow_nan=False, default=str) + "\n")
        sys.stdout.flush()
    else:
        show()


def say(text: str) -> None:
    """Print a line of the answer in rich's markup; use `escape` for names of the user."""
    consoles.Console(highlight=False, soft_wrap=True).print(text)


def escape(text: str) -> str:
    """Escape the marks of rich in a text, so that they are printed as they are."""
    return markup.escape(text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; the columns in `right` are aligned to the right."""
    if len(rows) > TABLE_ROWS:
        _plain_columns(head, rows)
        return
    shown = tables.Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=any(head))
    for name in head:
        shown.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    for row in rows:
        shown.add_row(*map(escape, row))
    console = consoles.Console(highlight=False)
    if not console.is_terminal:  # a file or pipe has no width
        console = consoles.Console(highlight=False, width=200)
    console.print(shown)


def show_options(owner: str, options: "Sequence[Option]") -> None:
    """Print the options of a measure or a search method with their defaults."""
    rows = [(option.name, str(option.default).lower(), option.summary) for option in options]
    if rows:
        say("")
        table([f"option of {owner}", "default", ""], rows)


def _plain_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def run(work: Work[T], settings: Settings, *listeners: Listener, at_once: bool = False) -> T:
    """Run long work and show its progress; Ctrl-C stops it at the next checkpoint, a second Ctrl-C at once.

    Args:
        work: the work.
        settings: global options.
        *listeners: further ones of its events.
        at_once: the first Ctrl-C stops work at once that has had no checkpoint so far; for work without checkpoints.
    """
    with _stop_request(at_once) as request, _display(settings) as show, _journal(settings) as writers:

        def listen(event: Event) -> None:
            show(event)
            for listener in (*writers, *listeners):
                listener(event)
            if isinstance(event, Checkpoint):
                request.at_once = False
                if request.received:
                    raise Interrupted

        with redirect_stdout(sys.stderr):  # what networks of the user or Ray print is no part of the answer
            return finish(work, listen)


@contextmanager
def _journal(settings: Settings) -> Iterator[list[Listener]]:
    """Journal of the running command, which `nearkin serve` shows."""
    command = click.get_current_context(silent=True)
    if command is None or command.info_name in NOT_JOURNALED or "://" in settings.zoo or not is_first():
        yield []
        return
    with journal.write_journal(Path(settings.zoo), command_words()) as write:
        yield [write]


@dataclass
class _StopRequest:
    """Signal handler: the first stop signal is noted, the second one interrupts at once.

    Attributes:
        at_once: whether the first one interrupts at once too.
        received: whether there was a signal.
    """

    at_once: bool
    received: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or self.received:
            raise Interrupted
        self.received = True
        if is_first():
            with suppress(OSError):  # no print in a handler: it may interrupt another one
                os.write(2, STOPPING)


@contextmanager
def _stop_request(at_once: bool) -> Iterator[_StopRequest]:
    """The handler of stop signals within a block."""
    request = _StopRequest(at_once)
    handlers = {number: signal.signal(number, request) for number in stop_signals()}
    try:
        yield request
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)


@contextmanager
def _display(settings: Settings) -> Iterator[Listener]:
    """Progress bars on a terminal, lines elsewhere, warnings only when quiet."""
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
        workers: set[str] = set()

        def show(event: Event) -> None:
            if isinstance(event, Progress):
                name = event.worker or event.stage  # a bar for each worker, and one for the stage of this process
                if name not in stages:
                    for old in stages.values() if not event.worker else ():
                        shown.update(old, visible=False)
                    stages[name] = shown.add_task(event.stage, total=event.total, figures="")
                    workers.update([name] if event.worker else [])
                for other in workers if event.done == event.total and not event.worker else ():
                    shown.update(stages[other], visible=False)
                shown.update(stages[name], completed=event.done, figures=_figures(event), description=event.stage,
                             total=event.total, visible=True)  # fmt: skip
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


def baseline_text(metric: str, value: float) -> str:
    """Metric of the best constant prediction from the training labels, as text.

    >>> baseline_text("accuracy", 0.9)
    'majority class: 0.9000'
    """
    return f"{'majority class' if metric == 'accuracy' else 'constant prediction'}: {value:.4f}"


def _figures(event: Progress) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in event.values.items())
