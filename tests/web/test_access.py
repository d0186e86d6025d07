"""Who may see the pages: the token, shared zoos, and the jobs of the queue."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nearkin.core.addresses import is_shared, without_secrets
from nearkin.core.errors import NearkinError
from nearkin.core.job_records import JobRecord
from nearkin.store.job_table import open_job_table
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.application import application
from nearkin.web.server import TOKEN, chosen_token, open_socket
from postgres_server import PASSWORD, PostgresServer
from web.zoos import filled, queued, serving

SECRET = "some-long-token-of-a-test"
BASE = "http://127.0.0.1"
ADDRESSES = ("/", "/map", "/work", "/task/zero", "/tasks.json", "/work.json", "/health", "/nowhere")


def visitor(zoo: Path, token: str = SECRET) -> TestClient:
    return TestClient(application(ReadOnlyStore(zoo), token=token), base_url=BASE, follow_redirects=False)


def test_without_the_token_nothing_is_answered(zoo: Path) -> None:
    tries = (
        {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {SECRET}x"}, {"Authorization": "Bearer "},
        {"Authorization": f"Basic {SECRET}"}, {"Cookie": f"nearkin={SECRET}"}, {"Cookie": "=;;nearkin_=\xff"},
    )  # fmt: skip
    for headers in tries:
        for path in (*ADDRESSES, "/?token=", "/?token=wrong", f"/?token=wrong&token={SECRET}", "/?token=%ff"):
            answer = visitor(zoo).get(path, headers={key: value.encode("latin-1") for key, value in headers.items()})
            assert answer.status_code == 401, (path, headers)
            assert answer.text.count("\n") == 1
            assert "zero" not in answer.text
            assert "set-cookie" not in answer.headers
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_program_sends_the_token_and_a_browser_swaps_it_for_a_cookie(zoo: Path) -> None:
    for path in ADDRESSES[:-1]:
        assert visitor(zoo).get(path, headers={"Authorization": f"Bearer {SECRET}"}).status_code == 200
    pages = visitor(zoo)
    swapped = pages.get(f"/map?measure=a%26b&token={SECRET}&aggregate=sorted")
    assert swapped.status_code == 303
    assert swapped.headers["location"] == "/map?measure=a%26b&aggregate=sorted"
    assert swapped.headers["referrer-policy"] == "no-referrer"
    attributes = swapped.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes
    for path in ADDRESSES[:-1]:
        answer = pages.get(path)
        assert answer.status_code == 200
        assert SECRET not in answer.text
    assert visitor(zoo, "another-long-token").get("/", headers={"Cookie": swapped.headers["set-cookie"]}).is_error


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example/x"])
def test_the_redirect_stays_on_this_server(zoo: Path, path: str) -> None:
    answer = visitor(zoo).get(f"{BASE}{path}?token={SECRET}")
    assert answer.status_code == 303
    assert re.match(r"/[^/\\]", answer.headers["location"])


def test_a_token_is_made_where_others_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with open_socket("127.0.0.1", 0) as near, open_socket("0.0.0.0", 0) as far:
        assert chosen_token(near) == ""
        assert len(chosen_token(far)) > 40
        assert chosen_token(far) != chosen_token(far)
        monkeypatch.setenv(TOKEN, SECRET)
        assert chosen_token(near) == chosen_token(far) == SECRET
        for bad in ("short", "sixteen characters", "a" * 20 + ";"):
            monkeypatch.setenv(TOKEN, bad)
            with pytest.raises(NearkinError, match=f"{len(bad)} characters, expected") as refused:
                chosen_token(near)
            assert bad not in str(refused.value)


def test_the_log_of_a_server_has_no_token(zoo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(zoo, SECRET) as site:
        request = urllib.request.Request(f"{site}/health", headers={"Authorization": f"Bearer {SECRET}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["tasks"] == 3
        for path in ("/", f"/?token={SECRET}", f"/nowhere?token={SECRET}"):
            with pytest.raises(urllib.error.HTTPError, match="401"):  # urllib keeps no cookies
                urllib.request.urlopen(f"{site}{path}", timeout=30)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_shared_zoo_has_the_pages_of_the_same_zoo_in_a_folder(
    shared_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    filled(shared_address, f"memory://{tmp_path.name}")
    folder = filled(tmp_path / "a zoo")
    with ReadOnlyStore(shared_address) as shared, ReadOnlyStore(folder) as local:
        stores = (shared, local)
        pages = [TestClient(application(zoo), base_url=BASE) for zoo in stores]
        for path in (
            "/",
            "/map",
            "/task/zero",
            "/task/six",
            "/task/nobody",
            "/tasks.json",
            "/health",
            "/task/six/report",
        ):
            answers = [page.get(path) for page in pages]
            texts = [one.text.replace(zoo.address, "ADDRESS") for one, zoo in zip(answers, stores, strict=True)]
            assert texts[0] == texts[1], path
            assert answers[0].status_code == answers[1].status_code
            assert PASSWORD not in answers[0].text
            assert "postgres:" not in answers[0].text.replace("postgresql:", "")
        assert without_secrets(shared_address) in pages[0].get("/").text
        assert "The queue is empty." in pages[0].get("/work").text
        (curve,) = {len(shared.losses(item)) for item in shared.artifacts(shared.tasks()[0]) if item.kind == "weights"}
        assert curve == 300


def test_a_server_that_is_away_is_a_clear_page(postgres_server: PostgresServer) -> None:
    with ReadOnlyStore(postgres_server.address(port=1)) as zoo:
        pages = TestClient(application(zoo), base_url=BASE)
        answer = pages.get("/")
        assert answer.status_code == 503
        assert "cannot reach the server" in answer.text
        assert PASSWORD not in answer.text
        assert "The jobs cannot be shown" in pages.get("/work").text
    with ReadOnlyStore(postgres_server.address(schema="nothing_here")) as zoo:
        assert "is empty; nearkin add" in TestClient(application(zoo), base_url=BASE).get("/health").json()["error"]
        assert not zoo.jobs().jobs
    assert not postgres_server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'nothing_here'")


@pytest.mark.parametrize("place", ["folder", "shared"])
def test_jobs_are_listed_by_state_and_no_queue_is_made(place: str, request: pytest.FixtureRequest, zoo: Path) -> None:
    address = str(zoo)
    if place == "shared":
        address = request.getfixturevalue("shared_address")
        filled(address, str(zoo))
    with ReadOnlyStore(address) as store:
        assert not store.jobs().jobs
        assert not (zoo / "jobs.db").exists()
        queued(address)
        pages = TestClient(application(store), base_url=BASE)
        facts = pages.get("/work.json").json()
        states = [job["state"] for job in facts["jobs"]]
        assert states == ["running", "failed", "pending", "pending", "cancelled", "done"]
        assert facts["queue"] == "2 pending, 1 running, 1 done, 1 failed, 1 cancelled."
        assert facts["running"] == int(is_shared(address))
        running, failed, *_ = facts["jobs"]
        assert (running["stage"], running["share"], running["note"]) == ("training <i>six</i> 3 of 4", 0.75, "on node7")
        assert failed["error"] == "the data has <b>no</b> labels; add some"
        page = pages.get("/work").text
        assert "training &lt;i&gt;six&lt;/i&gt; 3 of 4" in page
        assert "<b>no</b>" not in page
        assert "spec-of-a-job" not in page + json.dumps(facts)
        assert [job.key for job in store.jobs(limit=1).jobs] == ["running"]


def test_long_queues_are_cut_and_odd_ones_are_shown(zoo: Path) -> None:
    table = open_job_table(str(zoo))
    table.put([JobRecord(key=f"job {number}", spec="", title="t") for number in range(300)])
    with table.database.writing() as connection:
        for number, odd in enumerate(("{", "[1, 2]", '["a", NaN, 1]', '["a", 1, 0]', '["a", -5, -1]', "3", "[" * 9999)):
            connection.exec_driver_sql(
                "UPDATE jobs SET progress = ?, state = 'running', attempts = 'x' WHERE key = ?", (odd, f"job {number}")
            )
        connection.exec_driver_sql("UPDATE jobs SET state = '<b>' WHERE key = 'job 9'")
    pages = TestClient(application(ReadOnlyStore(zoo)), base_url=BASE)
    facts = pages.get("/work.json").json()
    assert len(facts["jobs"]) == 200
    assert "292 pending, 7 running; the first 200 are listed." in pages.get("/work").text
    table.close()
    (zoo / "jobs.db").write_bytes(b"no database, but long enough to look like one" * 50)
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (zoo / name).unlink(missing_ok=True)
    assert "The jobs cannot be shown" in pages.get("/work").text
