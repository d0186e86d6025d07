"""A bundle whose networks name code: it is taken in, and no command that reads it runs that code."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import nearkin as nk
from calling import Call
from hostile import MODULE, Canary, canary_in
from nearkin.solver.solution import KIND
from nearkin.store.bundle import export_bundle
from nearkin.store.read_only import ReadOnlyStore
from nearkin.web.application import application
from nearkin.zoo import model_file as modelfile
from report.solutions import planted

DATA = "digits?detect=0&limit=120"
QUICK = ("--epochs", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle, and a model file and solutions whose network is the canary's."""
    folder = tmp_path_factory.mktemp("hostile")
    recipe = nk.Recipe(epochs=1)
    with nk.Zoo(folder / "zoo") as zoo:
        for name in ("good", "good again"):
            zoo.add(nk.task(DATA, name=name), "mlp?hidden=4", trials=1, recipe=recipe)
        zoo.add(nk.task(DATA, name="evil"), "mlp?hidden=4", trials=1, recipe=recipe)
        evil = replace(zoo.solved("evil"), network=f"{MODULE}:Net")
        zoo.keep_architecture("evil", evil)
        export_bundle(zoo.catalogue, folder / "plain.zip")
        solution = replace(planted(), solved=replace(planted().solved, network=f"{MODULE}:Net"))
        zoo.keep("evil", KIND, solution.to_state())
        export_bundle(zoo.catalogue, folder / "solved.zip", ["evil"])
    modelfile.saved(evil, folder / "evil.safetensors")
    solution.save(folder / "solution.safetensors")
    shutil.rmtree(folder / "zoo")
    return folder


def hostile_bundle(plain: Path, networks: Mapping[str, str], out: Path) -> None:
    """The bundle with its task `evil` once for every one of these networks."""
    with zipfile.ZipFile(plain) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    manifest = json.loads(members["manifest.json"])
    model = next(task for task in manifest["tasks"] if task["name"] == "evil")
    manifest["tasks"].remove(model)
    manifest["tasks"] += [{**model, "name": f"evil {name}", "network": text} for name, text in networks.items()]
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(out, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)


@pytest.fixture
def canary(made: Path, tmp_path: Path, call: Call) -> Iterator[Canary]:
    """The hostile files in a folder of one's own, the bundle imported."""
    for file in made.iterdir():
        shutil.copy(file, tmp_path)
    with canary_in(tmp_path) as canary:
        hostile_bundle(made / "plain.zip", canary.networks, tmp_path / "hostile.zip")
        said = call("import", "hostile.zip", "--json")
        assert said.code == 0, said.err
        assert said.json["untrusted"] == [f"evil {name}" for name in canary.networks]
        yield canary


READ = [
    ("list",),
    ("list", "--json"),
    ("show", "evil module"),
    ("show", "evil machine", "--json"),
    ("doctor",),
    ("export", "again.zip"),
    ("near", "good"),
    ("near", DATA, "--measure", "frechet", "--screen", "3"),
    ("near", "evil module", "--measure", "frechet"),
    ("matrix", "good", "evil module", "evil machine"),
    ("map", "good", "good again", "evil file", "--out", "map.html"),
    ("transfer", "evil module", "good", "--shots", "2"),
    ("transfer", "evil file", DATA, "--shots", "2"),
    ("evaluate", "evil module"),
    ("evaluate", "evil reached"),
    ("evaluate", "evil shell", DATA),
    ("evaluate", "evil.safetensors", DATA),
    ("export-model", "evil.safetensors", "--to", "onnx"),
    ("export-model", "evil.safetensors", "--to", "torch"),
    ("export-model", "solution.safetensors", "--to", "torch"),
    ("export-model", "evil module", "--to", "python"),
    ("export-model", "evil relative file", "--trial", "0"),
    ("search", "evil module", "--method", "random", "--space", "full", "--evaluations", "1", "--channels", "2",
     "--cells", "1", *QUICK),
    ("remove", "evil module"),
]  # fmt: skip


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_no_command_runs_code_that_a_file_names(call: Call, canary: Canary, words: tuple[str, ...]) -> None:
    said = call(*words)
    assert not canary.sang
    last = (said.err.splitlines() or [""])[-1]
    assert said.code == 0 or (last.startswith("error: ") and said.err.count("error: ") == 1), said.err
    assert "unexpected" not in said.err
    if words[0] in ("transfer", "evaluate", "export-model"):
        assert "not trusted on this machine; if you trust it: nearkin --trust" in last


def test_tasks_are_listed_marked_and_left_out(call: Call, canary: Canary) -> None:
    tasks = {task["name"]: task["trusted"] for task in call("list", "--json").json["tasks"]}
    assert tasks == {"good": True, "good again": True, **{f"evil {name}": False for name in canary.networks}}
    assert "(not trusted)" in call("list").out  # long paths are broken over lines
    assert call("doctor", "--json").json["untrusted"] == [name for name, trusted in tasks.items() if not trusted]
    assert "not trusted: evil" in call("doctor").out
    assert f"nearkin --trust {MODULE} …" in " ".join(call("show", "evil module").out.split())
    found = call("matrix", "good", "good again", "evil file", "evil machine", "--json").json
    assert found["tasks"] == ["good", "good again"]
    assert [row["source"] for row in found["refused"]] == ["evil file", "evil machine"]
    refused = call("near", DATA, "--json").json["refused"]
    assert set(refused) == {f"evil {name}" for name in canary.networks}
    assert all("not trusted" in reason or "names no code" in reason for reason in refused.values()), refused


def test_a_solution_beside_a_hostile_kin_names_it_and_goes_on(call: Call, canary: Canary) -> None:
    said = call("solve", "new", "digits?detect=1&limit=120", "--evaluations", "1", "--only", "logistic",
                "--epochs", "1", "--measures", "kin", "--json")  # fmt: skip
    assert said.code == 0, said.err
    assert set(said.json["relations"]["refused"]) == {f"evil {name}" for name in canary.networks}
    assert not canary.sang


def test_pages_of_a_hostile_zoo(call: Call, canary: Canary, tmp_path: Path) -> None:
    assert call("--zoo", "solved", "import", "solved.zip").code == 0
    for zoo, task in (("nearkin-zoo", "evil module"), ("solved", "evil")):
        client = TestClient(application(ReadOnlyStore(tmp_path / zoo)), base_url="http://127.0.0.1")
        for page in (
            "/",
            "/tasks.json",
            "/map",
            "/work",
            "/work.json",
            "/health",
            f"/task/{task}",
            f"/task/{task}/report",
        ):
            client.get(page)
            assert not canary.sang
        assert client.get("/").status_code == client.get(f"/task/{task}").status_code == 200
    client = TestClient(application(ReadOnlyStore(tmp_path / "nearkin-zoo")), base_url="http://127.0.0.1")
    assert "(not trusted)" in client.get("/").text
    assert "not trusted on this machine" in client.get("/task/evil module").text


PROCESS = """
import sys
from nearkin.cli.app import main

for words in (["near", "good"], ["evaluate", "evil.safetensors", {data!r}], ["matrix", "good", "evil file"]):
    sys.argv = ["nearkin", *words]
    try:
        main()
    except SystemExit:
        pass
print("imported", {module!r} in sys.modules)
"""


@pytest.mark.soak
def test_a_process_of_its_own_imports_nothing_but_with_trust_it_does(call: Call, canary: Canary) -> None:
    code = PROCESS.format(data=DATA, module=MODULE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "imported False" in done.stdout
    assert not canary.trace.exists()
    said = call("--trust", MODULE, "near", DATA, "--json")  # the canary can be heard
    assert canary.trace.exists()
    compared = {kin["name"] for kin in said.json["kin"]} | set(said.json["refused"])
    assert compared == {"good", "good again", *(f"evil {name}" for name in canary.networks)}
    assert "posix, which is not trusted" in said.json["refused"]["evil reached"]
