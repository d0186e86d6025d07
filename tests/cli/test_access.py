"""Rights and secrets of a shared zoo: a reader cannot change it, and no command repeats the password of its address."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from calling import Call
from nearkin.core import url_objects
from nearkin.core.addresses import without_secrets
from nearkin.core.job_records import JobRecord
from nearkin.store.job_table import open_job_table
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.application import application
from postgres_server import PostgresServer

QUICK = ("--network", "mlp?hidden=16", "--trials", "1", "--epochs", "2")
MEASURE = ("--measure", "frechet")
SCHEMA = "access"


def marked() -> str:
    return f"pw-marker-{secrets.token_hex(8)}"


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, without the roles and the schema of the test at its end."""
    yield postgres_server
    postgres_server.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    for role in ("writer", "reader"):
        if postgres_server.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]):
            postgres_server.execute(f"DROP OWNED BY {role}")
            postgres_server.execute(f"DROP ROLE {role}")


def role(server: PostgresServer, name: str, password: str) -> str:
    """Make a role that may connect; returns its address of the zoo."""
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    return server.address(schema=SCHEMA, user=name, password=password)


@pytest.mark.soak
def test_no_command_repeats_a_password_and_a_reader_changes_nothing(
    call: Call, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = {name: marked() for name in ("writer", "reader", "wrong", "blobs")}
    writer = role(server, "writer", passwords["writer"])
    server.execute("GRANT CREATE ON DATABASE zoos TO writer")
    said: list[str] = []

    def run(address: str, *words: str, code: int = 0) -> str:
        done = call("--zoo", address, *words)
        said.extend(done[1:])
        assert done.code == code, (words, done.err)
        if code:
            assert done.err.count("\n") == 1, done.err
            assert done.err.startswith("error: ")
        return done.out + done.err

    blobs = ("--blobs", str(tmp_path / "files"))
    for name in ("zero", "six", "other"):
        run(writer, *blobs, "add", name, f"digits?detect={len(name)}&limit=120", *QUICK)
    for words in (
        ("list",),
        ("list", "--json"),
        ("show", "zero"),
        ("near", "zero", *MEASURE),
        ("matrix", *MEASURE, "--out", "matrix.html"),
        ("map", *MEASURE, "--out", "map.html"),
        ("--workers", "2", "matrix", "--measure", "short-finetune"),
        ("jobs", "--json"),
        ("doctor",),
        ("doctor", "--json"),
        ("zoo", "upgrade"),
        ("export", "other.nearkin", "other"),
        ("remove", "other"),
        ("solve", "one", "digits?detect=1&limit=120", "--budget", "0.05", "--epochs", "1", "--only", "logistic,svm"),
    ):
        run(writer, *words)
    assert without_secrets(writer) in (tmp_path / "matrix.html").read_text(), "the command of the page"
    table = open_job_table(writer)
    table.put([JobRecord(key="a", spec="{}", title="train zero")])
    table.close()

    reader = role(server, "reader", passwords["reader"])
    server.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO reader")
    server.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO reader")
    before = dump(server)
    for words in (("list",), ("show", "six"), ("near", "zero", *MEASURE), ("doctor",)):
        run(reader, *words)
    for words in (("remove", "six"), ("import", "other.nearkin")):
        refused = run(reader, *words, code=1)
        assert "cannot write" in refused, refused
    with ReadOnlyStore(reader) as zoo:
        pages = TestClient(application(zoo), base_url="http://127.0.0.1")
        for path in ("/", "/map", "/work", "/task/zero", "/task/six", "/tasks.json", "/work.json", "/none"):
            answer = pages.get(path)
            assert answer.status_code == (404 if path == "/none" else 200), answer.text
            said.append(answer.text)
        assert without_secrets(reader) in pages.get("/").text
        assert [job["title"] for job in pages.get("/work.json").json()["jobs"]] == ["train zero"]
    assert dump(server) == before

    wrong = server.address(schema=SCHEMA, user="reader", password=passwords["wrong"])
    for words in (("list",), ("serve", "--port", "0"), ("add", "x", "digits", *QUICK)):
        assert "password authentication failed" in run(wrong, *words, code=1)
    run(f"mysql://me:{passwords['wrong']}@host/zoo", "serve", code=1)
    far = ("--blobs", f"ftp://me:{passwords['blobs']}@127.0.0.1:1/zoo?token={passwords['blobs']}")
    monkeypatch.setattr(url_objects, "WAITS", ())
    assert "cannot open ftp://127.0.0.1:1/zoo" in run(writer, *far, "add", "x", "digits", *QUICK, code=1)
    monkeypatch.setenv("NEARKIN_ZOO", reader)
    unknown = call("near", "nobody")
    assert unknown.code == 1
    said.extend(unknown[1:])

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 8
    everything = b"\n".join([*written, before, *(text.encode() for text in said)])
    assert b"train zero" in everything
    assert not [name for name, password in passwords.items() if password.encode() in everything]


def dump(server: PostgresServer) -> bytes:
    """The schema of the test as SQL."""
    words = [str(server.programs / "pg_dump"), "--schema", SCHEMA, server.address()]
    text = subprocess.run(words, capture_output=True, check=True, env={**os.environ, "PGAPPNAME": "test"}).stdout
    return b"\n".join(line for line in text.splitlines() if not line.startswith((b"\\restrict", b"\\unrestrict")))
