"""Commands as a person or a script calls them: answers, exit codes, and one line for every error."""

import gzip
import os
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nearkin as nk
from calling import Call
from nearkin.core.state import State


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)).astype(np.float32)
    file = tmp_path / "my.npz"
    np.savez(file, x_train=x, y_train=(x[:, 0] > 0).astype(int), x_test=x[:20], y_test=(x[:20, 0] > 0).astype(int))
    return file


QUICK = ("--network", "mlp?hidden=16", "--trials", "2", "--epochs", "2")


def test_the_life_of_a_zoo(call: Call, arrays: Path, tmp_path: Path) -> None:
    added = call("add", "four", f"npz:{arrays}", *QUICK, "--json").json
    assert {"name", "network", "metric", "epsilon", "trials", "seconds"} <= added.keys()
    assert added["epsilon"] == pytest.approx(1 - added["metric"], abs=0.2)
    call("add", "zero", "digits?detect=0&limit=100", *QUICK)
    assert [task["name"] for task in call("list", "--json").json["tasks"]] == ["four", "zero"]
    shown = call("show", "zero", "--json").json
    assert shown["classes"] == ["other", "0"]
    kept = [(item["kind"], item["trial"]) for item in shown["artifacts"] if item["kind"] != "run"]
    assert kept == [("digests", 0), ("fisher", 0), ("fisher", 1), ("weights", 0), ("weights", 1)]
    assert sum(item["kind"] == "run" for item in shown["artifacts"]) == 2
    assert shown["recipe"]["epochs"] == 2
    assert call("doctor", "--json").json["health"]["sound"] is True
    measured = call("evaluate", "four", "--json").json
    assert measured["metric"] == pytest.approx(shown_metric(call, "four", 0))
    assert call("export", "all.zoo", "--json").json["tasks"] == ["four", "zero"]
    assert call("--zoo", "other", "import", "all.zoo", "--json").json["tasks"] == ["four", "zero"]
    assert call("--zoo", "other", "evaluate", "four", "--json").json["metric"] == measured["metric"]
    assert call("remove", "zero", "--json").json == {"removed": "zero"}
    assert len(call("list", "--json").json["tasks"]) == 1
    assert call("add", "zero", "digits?detect=0&limit=100", *QUICK).code == 0


def shown_metric(call: Call, name: str, trial: int) -> float:
    artifacts = call("show", name, "--json").json["artifacts"]
    return next(item["metric"] for item in artifacts if (item["kind"], item["trial"]) == ("weights", trial))


def test_people_read_the_title_of_a_metric_and_programs_its_identifier(call: Call, tmp_path: Path) -> None:
    data = "malaria:survey.csv"
    (tmp_path / "survey.csv").write_text("x,y,mean\n" + "\n".join(f"{i},{i % 5},{i / 99}" for i in range(60)))
    added = call("add", "rain", data, "--network", "mlp", *QUICK)
    assert "R² " in added.out, added.err
    assert call("show", "rain", "--json").json["metric_name"] == "r2"
    assert "R²" in call("show", "rain").out
    assert "R² " in call("evaluate", "rain").out
    assert "R² " in call("train", data, "--network", "mlp", "--epochs", "1").out


def test_what_a_person_reads(call: Call) -> None:
    call("add", "a [b] name", "digits?detect=0&limit=100", *QUICK)
    listed = call("list").out
    assert "a [b] name" in listed
    assert "digits?detect=0&limit=100" in listed
    shown = call("show", "a [b] name").out
    assert "a [b] name" in shown
    assert "majority class" in shown
    assert "sound: 1 task, 7 blobs" in call("doctor").out
    assert "empty" not in listed


def test_train_and_evaluate_a_file(call: Call, arrays: Path) -> None:
    words = (
        "train",
        f"npz:{arrays}",
        "--network",
        "mlp?hidden=16",
        "--epochs",
        "30",
        "--learning-rate",
        "0.01",
        "--out",
        "m.safetensors",
    )
    trained = call(*words, "--json").json
    assert trained["metric"] > 0.8
    assert trained["steps"] == 60
    stored = State.load(Path("m.safetensors"))
    assert stored.facts["recipe"]["batch_size"] > 0
    assert len(stored.section("history")["losses"]) == 60
    measured = call("evaluate", "m.safetensors", "--json").json
    assert measured["metric"] == pytest.approx(trained["metric"])
    again = call(*words)
    assert (again.code, again.out) == (1, "")
    assert "m.safetensors exists" in again.err
    assert call(*words, "--overwrite").code == 0
    assert "likelihood" in call("evaluate", "m.safetensors", "digits?dense=edges").err


def test_same_seed_same_bits_other_seed_other_bits(call: Call, arrays: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        call("--seed", seed, "add", name, f"npz:{arrays}", *QUICK)
    artifacts = {name: call("show", name, "--json").json["artifacts"] for name in "abc"}
    blobs = {name: [item["digest"] for item in items] for name, items in artifacts.items()}
    assert blobs["a"] == blobs["b"]
    of_data = {item["digest"] for item in artifacts["a"] if item["kind"] == "digests"}
    assert set(blobs["a"]) & set(blobs["c"]) == of_data, "only the digests of the samples do not depend on the seed"


class Evil:
    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


def broken_files(folder: Path) -> None:
    """Every kind of bad input that a person brings."""
    from nearkin.tasks.sources import task

    digits = task("digits?limit=50")
    x, y = (digits.train.all().x.numpy(), digits.train.labels().numpy())
    np.savez(folder / "short.npz", x_train=x, y_train=y[:-3])
    bad = x.copy()
    bad[3, 0, 2, 2] = np.nan
    np.savez(folder / "nan.npz", x_train=bad, y_train=y)
    np.savez(folder / "pickled.npz", x_train=x, y_train=np.array([Evil()], dtype=object))
    np.savez(folder / "gap.npz", x_train=x, y_train=y, x_test=x[:2], y_test=np.array([0, 77]))
    (folder / "photos" / "cats").mkdir(parents=True)
    (folder / "photos" / "dogs").mkdir()
    (folder / "cifar").mkdir()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / "cifar" / name).write_bytes(pickle.dumps(Evil()))
    (folder / "cut").mkdir()
    header = b"\0\0\x08\x03" + (10).to_bytes(4, "big") + (8).to_bytes(4, "big") * 2
    for part in ("train", "t10k"):
        whole = gzip.compress(header + bytes(640))
        (folder / "cut" / f"{part}-images-idx3-ubyte.gz").write_bytes(whole[:-12])
        labels = b"\0\0\x08\x01" + (10).to_bytes(4, "big") + bytes(range(10))
        (folder / "cut" / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    (folder / "table.csv").write_text("a,b\n1,2\n")


BAD_INPUT = [
    (("add", "x", "npz:nowhere.npz"), "nowhere.npz"),
    (("add", "x", "idx:cut"), "train-images-idx3-ubyte.gz"),
    (("add", "x", "npz:short.npz"), "labels"),
    (("add", "x", "npz:nan.npz"), "NaN"),
    (("add", "x", "npz:pickled.npz"), "pickled.npz"),
    (("add", "x", "npz:gap.npz"), "no training sample of class 77"),
    (("add", "x", "folder:photos"), "cats"),
    (("add", "x", "cifar:cifar"), "system"),
    (("add", "x", "csv:table.csv"), "target"),
    (("add", "x", "mnist"), "NEARKIN_DATA"),
    (("add", "kept", "digits"), "already has a task named 'kept'"),
    (("add", "x/y", "digits"), "cannot name a task"),
    (("add", "x", "digits", "--network", "lenett"), "did you mean lenet"),
    (("add", "x", "digits?limit=50", "--network", "recurrent"), "RecurrentLanguageModel"),
    (("show", "nobody"), "no task named 'nobody'"),
    (("remove", "keep"), "did you mean 'kept'"),
    (("evaluate", "nobody"), "no task named 'nobody'"),
    (("evaluate", "no.safetensors"), "there is no file no.safetensors"),
    (("import", "table.csv"), "table.csv"),
    (("export", "table.csv"), "table.csv"),
    (("--zoo", "photos", "list"), "is not a zoo"),
    (("--zoo", "table.csv", "list"), "is a file, expected a folder"),
    (("--zoo", "nowhere", "list"), "there is no zoo at nowhere"),
    (("--zoo", "postgresql://u:pw@127.0.0.1:1/db", "list"), "cannot reach the server of postgresql://u@127.0.0.1:1/db"),
    (("--device", "cuda:x", "add", "x", "digits?limit=50"), "unknown device"),
    (("--zoo", "newer", "list"), "install a newer nearkin"),
]


def test_bad_input_gets_one_line_and_the_zoo_stays_as_it_was(call: Call, tmp_path: Path) -> None:
    broken_files(tmp_path)
    call("add", "kept", "digits?detect=0&limit=100", *QUICK)
    call("--zoo", "newer", "add", "kept", "digits?detect=0&limit=100", *QUICK)
    with sqlite3.connect(tmp_path / "newer" / "zoo.db") as database:
        database.execute("UPDATE meta SET value = '99'")
    database.close()
    before = call("show", "kept", "--json").json
    for words, told in BAD_INPUT:
        said = call(*words)
        assert (said.code, said.out) == (1, ""), words
        lines = said.err.strip().splitlines()
        assert lines[-1].startswith("error: "), words
        assert told in lines[-1], words
        assert "Traceback" not in said.err
    assert not (tmp_path / "executed").exists(), "a pickle ran"
    assert call("show", "kept", "--json").json == before
    assert call("doctor", "--json").json["health"]["sound"] is True
    assert [task["name"] for task in call("list", "--json").json["tasks"]] == ["kept"]


def test_bad_data_makes_no_zoo(call: Call, tmp_path: Path) -> None:
    assert call("add", "x", "npz:nowhere.npz").code == 1
    assert not (tmp_path / "nearkin-zoo").exists()


@pytest.mark.parametrize("words", [("fly",), ("list", "--jsno"), ("add", "x"), ("--seed", "-1", "list"), ()])
def test_wrong_usage_exits_with_2(call: Call, words: tuple[str, ...]) -> None:
    assert call(*words).code == 2


def test_doctor_names_damage_and_exits_with_1(call: Call, tmp_path: Path) -> None:
    call("add", "kept", "digits?detect=0&limit=100", *QUICK)
    with nk.Catalogue(tmp_path / "nearkin-zoo", create=False) as catalogue:
        weights = next(item.digest for item in catalogue.artifacts("kept") if item.kind == "weights")
    blobs = sorted((tmp_path / "nearkin-zoo" / "blobs").rglob("*.safetensors"), key=lambda file: file.stem != weights)
    blobs[0].write_bytes(blobs[0].read_bytes()[:-1] + b"x")
    blobs[1].unlink()
    said = call("doctor")
    assert said.code == 1
    assert f"altered: blob {blobs[0].stem[:16]}" in said.out
    assert f"missing: blob {blobs[1].stem[:16]}" in said.out
    told = call("evaluate", "kept", "--trial", "0").err
    assert "altered" in told or "missing" in told


def test_a_full_disk_is_one_line_and_the_zoo_stays_as_it_was(call: Call, arrays: Path, tmp_path: Path) -> None:
    call("add", "kept", f"npz:{arrays}", *QUICK)
    before = call("list", "--json").json
    code = (
        "import resource, sys\n"
        "from nearkin.cli.app import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "main()\n"
    )
    words = ("add", "large", f"npz:{arrays}", "--network", "mlp?hidden=512-64", "--trials", "1", "--epochs", "1")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: cannot write")
    assert "free space" in done.stderr
    assert call("list", "--json").json == before
    assert call("doctor", "--json").json["health"]["sound"] is True
    assert call(*words).code == 0, "with room it goes on"


def test_help_answers_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['nearkin', '--help']\n"
        "from nearkin.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("add", "list", "show", "remove", "export", "import", "train", "evaluate", "doctor", "demo"):
        assert command in done.stdout


@pytest.mark.parametrize("words", [("list",), ("show", "kept"), ("export", "f"), ("remove", "kept")])
def test_commands_on_the_catalogue_do_not_wait_for_torch(call: Call, tmp_path: Path, words: tuple[str, ...]) -> None:
    call("add", "kept", "digits?detect=0&limit=100", *QUICK)
    code = (
        "import sys\n"
        "from nearkin.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_shell_completion_knows_the_tasks(call: Call, tmp_path: Path) -> None:
    call("add", "zebra", "digits?detect=0&limit=100", *QUICK)
    surroundings = {
        **os.environ,
        "_NEARKIN_COMPLETE": "complete_bash",
        "COMP_WORDS": "nearkin show z",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([Path(sys.executable).parent / "nearkin"], capture_output=True, text=True, cwd=tmp_path,
                          env=surroundings, check=False)  # fmt: skip
    assert "zebra" in done.stdout
