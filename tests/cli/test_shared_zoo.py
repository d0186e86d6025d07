"""Commands on a shared zoo: the same answers as in a folder, and no password anywhere."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from calling import Call, Said
from laws.store import new_task
from nearkin.core.addresses import without_secrets
from nearkin.store.catalogue import Catalogue
from nearkin.store.schema import MIGRATIONS

QUICK = ("--network", "mlp?hidden=16", "--trials", "1", "--epochs", "2")


def safe(said: Said) -> Said:
    assert "s3cret" not in said.out + said.err
    return said


def test_the_life_of_a_shared_zoo(call: Call, shared_address: str, tmp_path: Path) -> None:
    at = ("--zoo", shared_address)
    assert "there is no zoo at postgresql://postgres@127.0.0.1" in safe(call(*at, "list")).error
    refused = safe(call(*at, "add", "zero", "digits?detect=0&limit=100", *QUICK)).error
    assert "give the place of its files with --blobs URL" in refused
    blobs = str(tmp_path / "blobs")
    assert safe(call(*at, "doctor", "--json")).json["health"] is None
    for name, digit in (("zero", 0), ("six", 6)):
        added = safe(call(*at, "--blobs", blobs, "add", name, f"digits?detect={digit}&limit=100", *QUICK, "--json"))
        assert added.json["name"] == name, added
    listed = safe(call(*at, "list", "--json")).json
    assert listed["zoo"] == without_secrets(shared_address)
    assert [task["name"] for task in listed["tasks"]] == ["zero", "six"]
    assert safe(call(*at, "show", "six", "--json")).json["name"] == "six"
    assert safe(call(*at, "evaluate", "six", "--json")).code == 0
    page = tmp_path / "matrix.html"
    assert safe(call(*at, "map", "--out", str(page))).code == 0
    assert "s3cret" not in page.read_text()
    assert safe(call(*at, "near", "six", "--json")).code == 0
    assert safe(call(*at, "doctor", "--clean", "--json")).json["health"]["sound"]
    assert safe(call(*at, "export", "all.zoo", "--json")).json["tasks"] == ["zero", "six"]
    assert call("--zoo", "folder", "import", "all.zoo", "--json").json["tasks"] == ["zero", "six"]
    assert safe(call(*at, "remove", "zero", "--json")).json == {"removed": "zero"}
    assert "is migrated" not in safe(call(*at, "zoo", "upgrade")).out
    assert safe(call(*at, "--blobs", "elsewhere", "list")).error.endswith("leave --blobs out, or name another zoo")
    assert not any("s3cret" in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())


def test_the_variable_of_blobs_is_for_shared_zoos(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Catalogue("kin").close()
    assert call("--zoo", "kin", "--blobs", "x", "list").error.endswith("which keeps its blobs itself; leave it out")
    monkeypatch.setenv("NEARKIN_BLOBS", "x")
    assert call("--zoo", "kin", "list", "--json").json["tasks"] == []


def test_an_older_zoo_is_upgraded_by_a_command(call: Call, tmp_path: Path) -> None:
    Catalogue("kin", migrations=MIGRATIONS[:1]).close()
    newest = MIGRATIONS[-1].version
    assert call("--zoo", "kin", "list").error.endswith(f"expected {newest}; run nearkin zoo upgrade once")
    assert call("--zoo", "kin", "zoo", "upgrade", "--json").json == {"zoo": "kin", "before": 1, "version": newest}
    assert (tmp_path / "kin" / "zoo.db.v1").exists()
    assert call("--zoo", "kin", "zoo", "upgrade").out == f"The zoo kin has version {newest} already.\n"
    assert call("--zoo", "kin", "list", "--json").json["tasks"] == []
    assert "there is no zoo at nowhere" in call("--zoo", "nowhere", "zoo", "upgrade").error
    with closing(sqlite3.connect(tmp_path / "kin" / "zoo.db")) as database:
        database.execute("UPDATE meta SET value = '99'")
        database.commit()
    assert call("--zoo", "kin", "zoo", "upgrade").error.endswith("install a newer nearkin")


def test_a_long_list_is_shown_in_pages(call: Call) -> None:
    with Catalogue("kin") as zoo:
        zoo.admit([(new_task(f"it's {number}"), []) for number in range(1001)], lambda _: b"")
    at = ("--zoo", "kin", "list")
    shown = call(*at).out.splitlines()
    assert len(shown) == 1 + 100 + 1
    assert shown[-1] == """100 of 1,001 tasks; the next: nearkin list --after 'it'"'"'s 99'"""
    assert call(*at, "--after", "it's 99").out.splitlines()[1].startswith("it's 100 ")
    assert len(call(*at, "--json").json["tasks"]) == 1001
    last = call(*at, "--after", "it's 990", "--limit", "20", "--json").json
    assert [task["name"] for task in last["tasks"]] == [f"it's {number}" for number in range(991, 1001)]
    assert last["total"] == 1001
    assert "the next" not in call(*at, "--after", "it's 990", "--limit", "20").out
    assert "no task named 'nobody'" in call(*at, "--after", "nobody").error
