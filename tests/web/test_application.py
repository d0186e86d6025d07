"""Pages as a program asks for them: what they say, what they refuse, and that they leave the zoo as it is."""

import base64
import hashlib
import json
import re
import shutil
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from nearkin.core.events import Progress
from nearkin.core.state import State
from nearkin.report.solution_page import solution_page
from nearkin.run.journal import write_journal
from nearkin.solver.solution import KIND, Solution
from nearkin.store.catalogue import Catalogue
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import NewArtifact
from nearkin.web.application import application
from nearkin.web.frame import policy
from nearkin.web.guard import any_host
from report.solutions import planted
from web.zoos import MEASURE, NAMES, filled, new_task, renamed

HOSTILE = ("<img src=x onerror=alert(1)>", "../../etc", "a/b?c#d", "ü%2F& \"'", "x" * 100, "zero/report", "{{ 7*7 }}")
PAGES = (
    "/",
    "/map",
    "/work",
    "/task/zero",
    "/task/six",
    "/task/nobody",
    "/nowhere",
    "/?q=zero",
    "/map?aggregate=weight",
)
FIGURES = ("/tasks.json", "/work.json", "/health")


def client(zoo: Path) -> TestClient:
    return TestClient(application(ReadOnlyStore(zoo)), base_url="http://127.0.0.1")


class Seen(HTMLParser):
    """Tags, attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below a folder, its bytes and when it was written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in files
    }


def test_the_list_names_every_task_and_leads_to_it(zoo: Path) -> None:
    page = client(zoo).get("/")
    assert page.status_code == 200
    hrefs = [value for _, key, value in Seen(page.text).attributes if key == "href"]
    for name in NAMES:
        assert f"/task/{name}" in hrefs
    found = client(zoo).get("/", params={"q": "SIX lenet"}).text
    assert "/task/six" in found
    assert "/task/zero" not in found
    assert "No task has all of these words" in client(zoo).get("/", params={"q": "<b>"}).text


def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        zoo.admit([(new_task(f"task {number}"), ()) for number in range(205)], read_blob=lambda digest: b"")
    pages = client(tmp_path / "zoo")
    first, second, beyond = (pages.get(f"/?page={number}").text for number in (1, 2, 99))
    assert "/task/task%20199" in first
    assert "/task/task%20200" not in first
    assert "/task/task%20204" in second
    assert second == beyond
    assert 'rel="next" href="/?page=2"' in first


def test_an_empty_zoo_says_how_to_fill_it(tmp_path: Path) -> None:
    Catalogue(tmp_path / "zoo").close()
    assert "add zero 'digits?detect=0'" in Seen(client(tmp_path / "zoo").get("/").text).text
    assert "A map needs at least two tasks" in client(tmp_path / "zoo").get("/map").text


def test_a_task_page_tells_what_the_zoo_keeps(zoo: Path) -> None:
    page = Seen(client(zoo).get("/task/zero").text)
    for words in (
        "accuracy 0.9400 ± 0.0020",
        "always answering the majority class has 0.9000",
        "1,438 for training",
        "trial 1",
        "evolution",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") == 2 + 3, "two curves, three drawn cells"
    order = re.findall(r'href="/task/(\w+)"', client(zoo).get("/task/zero").text)
    with Catalogue(zoo) as catalogue:
        pairs = catalogue.pairs(MEASURE, "zero")
    means = {name: sum(pairs[name, trial]["sorted"] for trial in range(2)) / 2 for name in NAMES if name != "zero"}
    assert order == sorted(means, key=lambda name: means[name])
    assert all(f"{mean:.3f}" in page.text for mean in means.values())
    assert "2 cells, 8 channels wide" in client(zoo).get("/task/six").text


def test_a_broken_blob_spoils_its_part_only(zoo: Path) -> None:
    with Catalogue(zoo) as catalogue:
        for item in catalogue.artifacts("zero"):
            catalogue.blobs.path(item.digest).write_bytes(b"harm")
    page = client(zoo).get("/task/zero")
    assert page.status_code == 200
    assert page.text.count("This section cannot be shown") == 2
    assert "accuracy 0.9400" in Seen(page.text).text


def test_the_map_is_over_what_is_kept(zoo: Path) -> None:
    page = client(zoo).get("/map").text
    assert 'id="nk-map-title"' in page
    assert "frechet model 1000, sorted" in Seen(page).text
    with Catalogue(zoo) as catalogue:
        pairs = catalogue.pairs(MEASURE, "zero")
    for aggregate in ("sorted", "weight"):
        mean = sum(pairs["some", trial][aggregate] for trial in range(2)) / 2
        found = re.findall(r">(0\.\d{3})<", client(zoo).get(f"/map?aggregate={aggregate}").text)
        assert f"{mean:.3f}" in found
    with Catalogue(zoo) as catalogue:
        catalogue.add(new_task("alone"))
    assert "1 of the zoo’s 4 tasks is not on the map" in client(zoo).get("/map").text


def test_a_map_of_nothing_names_the_command(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        zoo.add(new_task("a"))
        zoo.add(new_task("b"))
    page = client(tmp_path / "zoo").get("/map")
    assert page.status_code == 200
    assert f"nearkin --zoo {tmp_path / 'zoo'} matrix" in Seen(page.text).text


def test_one_measured_pair_is_a_map(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        for name in "abc":
            zoo.add(new_task(name))
        zoo.keep_pair(MEASURE, "a", "c", 0, {"sorted": 0.25})
    page = client(tmp_path / "zoo").get("/map")
    assert page.status_code == 200
    assert "0.250" in Seen(page.text).text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_and_lead_to_their_page(zoo: Path, name: str) -> None:
    renamed(zoo, "some", name)
    pages = client(zoo)
    link = f"/task/{quote(name, safe='')}"
    listed = Seen(pages.get("/").text)
    assert ("a", "href", link) in listed.attributes
    for path in ("/", "/map", link, "/task/zero"):
        answer = pages.get(path)
        assert answer.status_code == 200, path
        seen = Seen(answer.text)
        assert name in seen.text
        assert "img" not in seen.tags
        assert seen.tags.count("script") == 2
        assert not [one for one in seen.attributes if one[1].startswith("on")]
    renamed(zoo, name, "gone")
    lost = pages.get(link)
    assert lost.status_code == 404
    assert "img" not in Seen(lost.text).tags


def test_an_unknown_name_is_told_with_the_nearest(zoo: Path) -> None:
    page = client(zoo).get("/task/zeroo")
    assert page.status_code == 404
    assert 'href="/task/zero"' in page.text
    for path in ("/task/", "/task", "/task/zero/more/still", "/task/zero/report", "/nowhere", "/%00", "/task/%ff"):
        assert client(zoo).get(path).status_code == 404, path


def test_a_kept_report_is_linked_and_stands_apart(tmp_path: Path) -> None:
    zoo = filled(tmp_path / "zoo")
    solution = planted(name="six")
    with Catalogue(zoo) as catalogue:
        catalogue.attach("six", [NewArtifact(KIND, 0, solution.to_state().to_bytes(), {})])
    kept = solution_page(Solution.from_state(State.from_bytes(solution.to_state().to_bytes())))
    assert 'href="/task/six/report"' in client(zoo).get("/task/six").text
    assert "/report" not in client(zoo).get("/task/zero").text
    answer = client(zoo).get("/task/six/report")
    assert answer.text == kept
    (script,) = re.findall(r"<script>(.*?)</script>", kept, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{digest}'"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy


def test_figures_are_json(zoo: Path) -> None:
    told = client(zoo).get("/tasks.json").json()
    assert [task["name"] for task in told["tasks"]] == list(NAMES)
    assert {"network", "metric", "epsilon", "trials", "seconds"} <= told["tasks"][0].keys()
    assert client(zoo).get("/health").json()["tasks"] == 3
    with write_journal(zoo, ["--zoo", "here", "add", "<b>", "--mlflow", "http://me:secret@there"]) as listen:
        listen(Progress("training", 3, 12, {"loss": 0.5}))
        told = client(zoo).get("/work.json").json()
    assert told["running"] == 1
    assert told["runs"][0]["command"] == "nearkin add '<b>' --mlflow 'http://…@there'"
    assert client(zoo).get("/work.json").json()["runs"][0]["state"] == "done"
    assert '<code data-f="command">nearkin add &#39;&lt;b&gt;&#39;' in client(zoo).get("/work").text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(zoo: Path, method: str) -> None:
    for path in (*PAGES, *FIGURES):
        answer = client(zoo).request(method, path)
        assert answer.status_code == 405, path
        assert answer.headers["allow"] == "GET, HEAD"
    assert client(zoo).head("/").status_code == 200


@pytest.mark.parametrize("path", [*PAGES, *FIGURES])
def test_every_answer_is_guarded(zoo: Path, path: str) -> None:
    answer = client(zoo).get(path)
    assert answer.headers["content-security-policy"] == policy()
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers
    assert "unsafe" not in policy().replace("style-src 'unsafe-inline'", "")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", answer.text.replace("http://127.0.0.1", ""))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8321", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("LOCALHOST:1", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8321", 421),
        ("localhost.evil.example", 421),
        ("[::1].evil.example", 421),
        ("192.168.0.7", 421),
        ("", 421),
    ],
)
def test_loopback_answers_to_loopback_only(zoo: Path, host: str, status: int) -> None:
    answer = client(zoo).get("/tasks.json", headers={"host": host})
    assert answer.status_code == status
    assert ("zero" in answer.text) == (status == 200)
    anywhere = TestClient(application(ReadOnlyStore(zoo), any_host))
    assert anywhere.get("/tasks.json", headers={"host": host}).status_code == 200


def test_browsing_changes_no_byte(zoo: Path) -> None:
    with write_journal(zoo, ["add", "x"]):
        pass
    before = contents(zoo)
    for path in (*PAGES, *FIGURES):
        client(zoo).get(path)
    assert contents(zoo) == before


def test_browsing_beside_a_writer_sees_what_is_committed_and_changes_no_byte(zoo: Path) -> None:
    with closing(sqlite3.connect(zoo / "zoo.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE tasks SET metric = 0.5 WHERE name = 'zero'")
        before = {name: what for name, what in contents(zoo).items() if not name.endswith("-shm")}
        assert "zoo.db-wal" in before
        for path in (*PAGES, *FIGURES):
            client(zoo).get(path)
        assert client(zoo).get("/tasks.json").json()["tasks"][0]["metric"] == pytest.approx(0.94)
        assert {name: what for name, what in contents(zoo).items() if not name.endswith("-shm")} == before
        writer.execute("COMMIT")
        assert client(zoo).get("/tasks.json").json()["tasks"][0]["metric"] == 0.5


def test_what_a_killed_writer_left_is_read_and_not_changed(zoo: Path, tmp_path: Path) -> None:
    left = tmp_path / "left"
    with closing(sqlite3.connect(zoo / "zoo.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("UPDATE tasks SET metric = 0.5 WHERE name = 'zero'")
        shutil.copytree(zoo, left, ignore=shutil.ignore_patterns("*-shm"))
    before = contents(left)
    assert before["zoo.db-wal"]
    for _ in range(2):
        assert client(left).get("/tasks.json").json()["tasks"][0]["metric"] == 0.5
    after = contents(left)
    after.pop("zoo.db-shm", None)
    assert after == before


def test_a_zoo_that_changes_while_it_is_read_is_read_again(zoo: Path) -> None:
    reading, asked = ReadOnlyStore(zoo), []

    def question(connection: object) -> int:
        asked.append(1)
        if len(asked) == 1:
            renamed(zoo, "zero", "other")
        return len(asked)

    assert reading.reader.query(question) == 2


def test_an_older_zoo_is_not_brought_up(zoo: Path) -> None:
    with closing(sqlite3.connect(zoo / "zoo.db")) as database:
        database.execute("UPDATE meta SET value = '1'")
        database.commit()
    before = contents(zoo)
    answer = client(zoo).get("/")
    assert answer.status_code == 503
    assert "run nearkin zoo upgrade" in answer.text
    assert contents(zoo) == before


def test_a_zoo_that_cannot_be_read_is_a_clear_page(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.store.readers.LOCK_SECONDS", 0.1)
    pages = client(zoo)
    with closing(sqlite3.connect(zoo / "zoo.db", isolation_level=None)) as owner:
        owner.execute("PRAGMA locking_mode = EXCLUSIVE")
        owner.execute("BEGIN EXCLUSIVE")
        owner.execute("UPDATE tasks SET metric = 0.5")
        locked = pages.get("/")
        owner.execute("ROLLBACK")
    (zoo / "zoo.db").write_bytes(b"no database, but long enough to look like one" * 50)
    broken = pages.get("/task/zero")
    shutil.rmtree(zoo)
    gone = pages.get("/map")
    for answer, words in (
        (locked, "another process"),
        (broken, "is not a database of nearkin"),
        (gone, "there is no zoo at"),
    ):
        assert answer.status_code == 503
        assert words in Seen(answer.text).text
        assert "Traceback" not in answer.text
        assert answer.text.startswith("<!DOCTYPE html>")
    assert pages.get("/health").status_code == 503
    assert pages.get("/work").status_code == 200


def test_a_journal_with_an_absurd_date_does_not_break_the_pages(zoo: Path) -> None:
    for word in ("good", "bad"):
        with write_journal(zoo, [word]):
            pass
    bad = max((zoo / "journal").glob("*.json"))
    facts = json.loads(bad.read_text())
    del facts["sha256"]
    bad.write_text(json.dumps({**facts, "started": 1e18}))
    page = client(zoo).get("/work")
    assert page.status_code == 200
    assert "nearkin good" in page.text
    assert f"Damaged journal files are not shown: {bad.name}" in page.text
    told = client(zoo).get("/work.json").json()
    assert [run["command"] for run in told["runs"]] == ["nearkin good"]
    assert told["damaged"] == [bad.name]
