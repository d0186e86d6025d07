"""The journal of a run: what it tells, how small it stays, and that it is never in the way."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearkin.core.errors import ZooError
from nearkin.core.events import Caution, Checkpoint, Note, Progress
from nearkin.core.state import State
from nearkin.run import journal
from nearkin.run.journal import (
    FOLDER,
    HISTORY,
    KEPT_ENTRIES,
    LINES,
    LONGEST,
    ZOO_MARK,
    journals,
    read_journals,
    write_journal,
)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    (tmp_path / ZOO_MARK).touch()
    return tmp_path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is written."""
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
def test_it_tells_what_is_going_on(zoo: Path) -> None:
    with write_journal(zoo, ["add", "zero"]) as listen:
        listen(Note("choosing\nlenet"))
        listen(Progress("trial 1", 2, 8, {"loss": 0.5, "odd": float("nan")}))
        listen(Caution("few samples"))
        listen(Checkpoint(lambda: State({})))
        (entry,) = journals(zoo)
        assert (entry.state, entry.stage, entry.done, entry.total) == ("running", "trial 1", 2, 8)
        assert entry.values == {"loss": 0.5}
        assert entry.notes == ("choosing lenet",)
        assert entry.cautions == ("few samples",)
        assert entry.process == os.getpid()
        assert entry.started <= time.time()
        assert [(stage, values) for _, stage, values in entry.history] == [("trial 1", {"loss": 0.5})]
    (entry,) = journals(zoo)
    assert entry.state == "done"
    assert entry.seconds >= 0


def test_how_it_ends_is_its_last_word(zoo: Path) -> None:
    class Interrupted(BaseException):
        pass

    with pytest.raises(ZooError), write_journal(zoo, ["a"]):
        raise ZooError("the zoo has no task named\nx")
    with pytest.raises(Interrupted), write_journal(zoo, ["b"]):
        raise Interrupted
    told = {entry.command[0]: (entry.state, entry.error) for entry in journals(zoo)}
    assert told == {"a": ("failed", "the zoo has no task named x"), "b": ("interrupted", "")}
    assert [entry.command[0] for entry in journals(zoo)] == ["b", "a"], "latest first"


def test_a_run_whose_process_is_gone_has_stopped(zoo: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom nearkin.run.journal import write_journal\n"
        "with write_journal(Path(sys.argv[1]), ['add', 'x']):\n    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(zoo)], check=False)
    assert [entry.state for entry in journals(zoo)] == ["stopped"]


def test_a_process_of_the_same_number_is_not_mistaken_for_it(zoo: Path) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not tell when a process began")
    with write_journal(zoo, ["add", "x"]):
        (file,) = (zoo / FOLDER).glob("*.json")
        facts = json.loads(file.read_text())
        del facts["sha256"]
        file.write_text(json.dumps({**facts, "born": "1"}))
        assert [entry.state for entry in journals(zoo)] == ["stopped"]
        file.write_text(json.dumps({**facts, "born": "1", "host": "another machine"}))
        assert [entry.state for entry in journals(zoo)] == ["running"], "of another machine nothing can be said"


def test_it_stays_small_however_long_the_work(zoo: Path) -> None:
    many = {f"v{place}": 1.0 for place in range(100)}
    with write_journal(zoo, ["w" * 5000]) as listen:
        for step in range(1500):
            listen(Progress(f"stage {step} " + "s" * 1000, step, None, many))
            listen(Note("n" * 1000))
    (entry,) = journals(zoo)
    assert len(entry.history) <= HISTORY + 1
    assert len(entry.notes) == len(entry.values) == LINES
    assert max(len(entry.stage), len(entry.notes[0]), len(entry.command[0])) == LONGEST
    seconds = [at for at, _, _ in entry.history]
    assert seconds == sorted(seconds)
    (file,) = (zoo / FOLDER).glob("*.json")
    assert file.stat().st_size < journal.LARGEST


def test_it_is_written_now_and_then_only(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(journal, "write_durably", lambda path, data: written.append(path))
    begun = time.monotonic()
    with write_journal(zoo, ["add"]) as listen:
        for step in range(2000):
            listen(Progress("s", step, 2000, {"loss": 1.0}))
    assert len(written) <= 3 + (time.monotonic() - begun) / journal.EVERY_SECONDS


def test_where_there_is_no_zoo_nothing_is_made(tmp_path: Path) -> None:
    for place in (tmp_path / "none", tmp_path):
        with write_journal(place, ["add"]) as listen:
            listen(Progress("s", 1))
        assert journals(place) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_once")
def test_a_zoo_that_goes_meanwhile_is_not_made_again(zoo: Path) -> None:
    with write_journal(zoo / "in", ["add"]) as listen:
        (zoo / "in").mkdir()
        (zoo / "in" / ZOO_MARK).touch()
        listen(Progress("s", 1))
        assert len(journals(zoo / "in")) == 1, "one that comes meanwhile is told of"
        for path in sorted((zoo / "in").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (zoo / "in").rmdir()
        listen(Progress("s", 2))
    assert not (zoo / "in").exists()


@pytest.mark.usefixtures("at_once")
def test_a_disk_that_refuses_does_not_hinder_the_work(zoo: Path) -> None:
    (zoo / FOLDER).write_text("a file where the folder should be")
    with write_journal(zoo, ["add"]) as listen:
        listen(Progress("s", 1))
        listen(Progress("s", 1, None, {"odd": None, "text": "x"}))  # type: ignore[dict-item]
        listen(Note("\ud800"))
    assert journals(zoo) == []


def test_the_writer_tidies_and_the_reader_does_not(zoo: Path) -> None:
    with write_journal(zoo, ["first"]):
        pass
    (file,) = (zoo / FOLDER).glob("*.json")
    for place in range(KEPT_ENTRIES + 20):
        (zoo / FOLDER / f"{place:020d}-1.json").write_bytes(file.read_bytes())
    old = zoo / FOLDER / "09999999999999999999-1.json"
    left = zoo / FOLDER / ".part-x"
    for path in (old, left):
        path.write_bytes(file.read_bytes())
        os.utime(path, (1, 1))
    before = sorted(os.listdir(zoo / FOLDER))
    journals(zoo)
    assert sorted(os.listdir(zoo / FOLDER)) == before
    with write_journal(zoo, ["second"]):
        pass
    kept = sorted(os.listdir(zoo / FOLDER))
    assert len(kept) == KEPT_ENTRIES
    assert not {old.name, left.name} & set(kept)
    assert file.name in kept


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"id": 3}', '{"values": []}', "[" * 100_000, "null"])
def test_what_is_no_journal_is_passed_over(zoo: Path, text: str) -> None:
    with write_journal(zoo, ["good"]):
        pass
    (zoo / FOLDER / "x.json").write_text(text)
    assert [entry.command for entry in journals(zoo)] == [("good",)]


@pytest.mark.parametrize(
    "change",
    [
        {"started": 10.0**6 * 365.25 * 86400},
        {"updated": float("nan")},
        {"started": float("inf")},
        {"started": -1e300},
        {"started": "yesterday"},
        {"updated": None},
        {"done": "3"},
        {"total": 10**30},
        {"values": "loss"},
        {"values": {"loss": "low"}},
        {"history": [[1, 2]]},
        {"command": "add"},
        {"extra": 1},
        {"notes": None},
    ],
    ids=str,
)
def test_a_damaged_journal_is_named_and_the_others_are_read(zoo: Path, change: dict[str, object]) -> None:
    for word in ("good", "bad"):
        with write_journal(zoo, [word]) as listen:
            listen(Progress("s", 1, 2, {"loss": 0.5}))
    bad, _ = sorted((zoo / FOLDER).glob("*.json"), reverse=True)
    facts = json.loads(bad.read_text())
    del facts["sha256"]  # as an older version wrote it
    bad.write_text(json.dumps(facts))
    assert [entry.command for entry in journals(zoo)] == [("bad",), ("good",)]
    bad.write_text(json.dumps({**facts, **change}))
    entries, damaged = read_journals(zoo)
    assert [entry.command for entry in entries] == [("good",)]
    assert damaged == [bad.name]


def test_every_flipped_bit_of_a_journal_is_noticed_or_harmless(zoo: Path) -> None:
    with write_journal(zoo, ["add", "zero"]) as listen:
        listen(Progress("zero", 1, 2, {"loss": 0.5}))
    (file,) = (zoo / FOLDER).glob("*.json")
    data, whole = file.read_bytes(), journals(zoo)
    unnoticed = 0
    for position in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        file.write_bytes(flipped)
        entries, damaged = read_journals(zoo)
        assert entries == whole or damaged == [file.name]
        unnoticed += not damaged
    assert unnoticed < 5, "a change of white space, or of the last digit of a number that reads the same"


def test_passwords_are_left_out(zoo: Path) -> None:
    with write_journal(zoo, ["search", "--mlflow", "https://me:secret@host/x"]):
        pass
    assert journals(zoo)[0].command[2] == "https://…@host/x"
    assert "secret" not in next((zoo / FOLDER).glob("*.json")).read_text()
