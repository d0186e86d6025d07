"""Which code a network string may import, and who decides."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nearkin as nk
from hostile import MODULE, Canary, canary_in
from nearkin.core.errors import NearkinError, OptionError
from nearkin.core.events import Caution, finish
from nearkin.nets import trusted_code
from nearkin.nets.adopted_spec import ADOPTED
from nearkin.nets.registry import build, path_of
from nearkin.nets.trusted_code import OWN, TrustError, is_trusted, refusal, remember, trust, trust_network
from nearkin.search.networks.named import PATH as SEARCHED
from nearkin.solver.contenders import Contender, trained_network, training_state
from nearkin.solver.ensemble import Ensemble
from nearkin.solver.plan import Plan
from nearkin.solver.relations import Relations
from nearkin.solver.simple.machines import KernelMachine, LinearMachine
from nearkin.solver.simple.tree_machines import AveragedTrees, BoostedTrees
from nearkin.solver.solution import Solution
from nearkin.transfer.machine import PATH as TANGENT
from nearkin.transfer.machine import TangentMachine
from nearkin.zoo import model_file as modelfile
from report.solutions import planted

SHAPE = (1, 8, 8)
QUICK = nk.Recipe(epochs=1)
NAMES = (
    "module", "function", "reached", "relative file", "dotted file", "file", "shell", "folder", "process", "exec",
    "importer", "own function", "own command", "own attribute", "machine", "wide letter", "two colons", "parent",
    "blank",
)  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    """A canary, in a process whose user trusts nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    with canary_in(tmp_path) as canary:
        yield canary


@pytest.fixture
def trusted_file(tmp_path: Path) -> Path:
    return tmp_path / "configuration" / "nearkin" / "trusted.json"


def task(name: str = "zero") -> nk.Task:
    return nk.task("digits?detect=0&limit=60", name=name)


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process was told, as the next one does."""
    monkeypatch.setattr(trusted_code, "_process", set())
    sys.modules.pop(MODULE, None)


def test_every_hostile_string_is_tried(canary: Canary) -> None:
    assert tuple(canary.networks) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_hostile_string_is_run(canary: Canary, name: str) -> None:
    network = canary.networks[name]
    assert not is_trusted(network)
    with pytest.raises(TrustError) as refused:
        build(network, SHAPE, 2, seed=0)
    assert not canary.sang
    assert str(refused.value) == refusal(network.strip().partition("?")[0]) or name == "machine"
    assert "\n" not in str(refused.value)
    assert "--trust" in str(refused.value) or name in ("wide letter", "two colons", "parent")


@pytest.mark.parametrize("name", NAMES)
def test_trust_in_a_module_is_no_trust_in_what_it_imports(canary: Canary, name: str) -> None:
    trust(MODULE)
    assert is_trusted(canary.networks[name]) == (name in ("module", "function", "reached", "machine", "blank"))
    if name == "reached":
        with pytest.raises(TrustError, match="is defined in module posix, which is not trusted"):
            build(canary.networks[name], SHAPE, 2, seed=0)
        assert canary.trace.read_text() == "imported"  # of the trusted module; the command was not run


def readers(canary: Canary, folder: Path) -> dict[str, Callable[[], Any]]:
    """Every way from a stored network string to a network."""
    network, recipe = canary.networks["module"], QUICK
    with nk.Zoo(folder / "zoo") as zoo:
        zoo.add(task(), "mlp?hidden=4", trials=1, recipe=recipe)
        solved = replace(zoo.solved("zero"), network=network)
        zoo.keep_architecture("zero", solved)
    modelfile.saved(solved, folder / "model.safetensors")
    solution = planted()
    replace(solution, solved=replace(solution.solved, network=network)).save(folder / "solution.safetensors")
    stage = training_state(network, solved.trials[0], {})
    zoo = nk.Zoo(folder / "zoo")

    def near_kin() -> Any:
        from nearkin.solver.joining import join_zoo

        contest = type("Contest", (), {"outcomes": {}, "results": [], "learn": task()})()
        ranking = {"frechet": [{"name": "evil", "distance": 0.1, "trials": [0.1]}]}
        row = replace(zoo.record("zero"), name="evil", network=network)
        edited = type("EditedZoo", (nk.Zoo,), {"record": lambda self, name: row})(folder / "zoo")
        new = replace(solution, relations=Relations(rankings=ranking))
        return finish(join_zoo(edited, task("new"), Plan(), contest, new))  # type: ignore[arg-type]

    return {
        "solved": solved.model,
        "scores": lambda: solved.scores_on(task()),
        "architecture": lambda: zoo.architecture("zero").model(),  # type: ignore[union-attr]
        "model file": lambda: modelfile.loaded(folder / "model.safetensors").model(),
        "solution": lambda: Solution.load(folder / "solution.safetensors").model,
        "stage": lambda: trained_network(stage, Contender(name="own", title="own", kind="searched", task=task()))[
            0
        ].model(),
        "adding": lambda: zoo.add(task("new"), network, trials=1, recipe=recipe, from_file=True),
        "joining": near_kin,
        "probe": lambda: nk.distance.screening.Probe(network=network).fisher(task()),
    }


def test_no_reader_builds_it(canary: Canary, tmp_path: Path) -> None:
    for name, read in readers(canary, tmp_path).items():
        with pytest.raises(TrustError, match=f"nearkin --trust {MODULE} …"):
            read()
        assert not canary.sang, name
    assert not list((tmp_path / "zoo" / "work").glob("*/*")), "an untrusted network leaves no work behind"


def test_own_networks_need_no_trust_and_nothing_else_of_the_package_has_it() -> None:
    one = torch.ones(1)
    machines = (
        LinearMachine(one[None], one),
        KernelMachine(one[None], one[None], one, one, one),
        BoostedTrees(1, 1, 0, 1),
        AveragedTrees(1, 1, 0, 1),
        TangentMachine(nn.Linear(1, 1), "mlp", one[None], one[None], one[None], one),
        Ensemble(nn.ModuleList([nn.Linear(1, 1)]), ["mlp"], one, one, classes=False),
    )
    written = {machine.network.partition("?")[0] for machine in machines} | {SEARCHED, TANGENT, ADOPTED}
    assert written == OWN.keys()
    assert all(is_trusted(machine.network) for machine in machines)
    for network in (machine.network for machine in machines):
        assert build(network, (1,), 1, seed=0)(torch.ones(1, 1)).shape == (1, 1)
    for name in OWN:
        assert not is_trusted(f"{name}x")
        assert not is_trusted(f"{name.rpartition(':')[0]}:torch.load")


@pytest.mark.parametrize("how", ["option", "variable", "python", "file", "one network"])
def test_the_user_can_trust_a_module_or_a_file(canary: Canary, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    network = f"{canary.path}:Net" if how == "file" else f"{MODULE}:Net"
    if how == "variable":
        monkeypatch.setenv("NEARKIN_TRUST", f"other, {MODULE}")
    else:
        nk.trust({"file": f"../{canary.folder.name}/{MODULE}.py", "one network": network}.get(how, MODULE))
    assert is_trusted(network)
    assert build(network, SHAPE, 2, seed=0)(torch.zeros(1, *SHAPE)).shape == (1, 2)
    assert is_trusted(f"{MODULE}:effect") == (how not in ("file", "one network"))
    assert not is_trusted(f"{MODULE}x:Net")


@pytest.mark.parametrize("name", ["", "os system", "a/b", ".os", "os.", "x.py\0.py", "a:b c", "-", "1a"])
def test_what_names_no_code_cannot_be_trusted(name: str) -> None:
    with pytest.raises(OptionError, match="cannot trust"):
        trust(name)


def test_a_network_that_was_typed_is_remembered_and_only_that(
    canary: Canary, trusted_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(task("plain"), "mlp?hidden=4", trials=1, recipe=QUICK)
        assert not trusted_file.exists()
        zoo.add(task("module"), f"{MODULE}:Net", trials=1, recipe=QUICK)
        zoo.add(task("file"), f"{MODULE}.py:Net", trials=1, recipe=QUICK)
        new_process(monkeypatch)
        assert is_trusted(f"{MODULE}:Net")
        assert not is_trusted(f"{MODULE}:effect")
        assert zoo.solved("file").model()(torch.zeros(1, *SHAPE)).shape == (1, 2)
        assert stat.S_IMODE(trusted_file.stat().st_mode) == 0o600
        canary.path.write_text(canary.path.read_text() + "\nother = 1\n")
        assert is_trusted(f"{MODULE}:Net")
        with pytest.raises(TrustError, match="has changed since you used it; if you trust it"):
            zoo.solved("file").model()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "zoo").rglob("*") if file.is_file())
    assert trusted_file.read_bytes() not in kept
    assert b"trusted" not in kept


def test_a_class_is_trusted_as_it_is_used_and_remembered(
    canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nearkin_canary  # type: ignore[import-not-found]

    assert path_of(nearkin_canary.Net) == f"{MODULE}:Net"
    with nk.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(task(), nearkin_canary.Net, trials=1, recipe=QUICK)
        new_process(monkeypatch)
        assert zoo.solved("zero").model()(torch.zeros(1, *SHAPE)).shape == (1, 2)


def test_what_was_read_under_trust_is_not_remembered(canary: Canary, trusted_file: Path, tmp_path: Path) -> None:
    trust(MODULE)
    with nk.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(task(), f"{MODULE}:Net", trials=1, recipe=QUICK, from_file=True)
    assert not trusted_file.exists()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda file: file.write_text(""),
    "cut": lambda file: file.write_text(file.read_text()[:-5]),
    "list": lambda file: file.write_text("[]"),
    "version": lambda file: file.write_text('{"version": 2, "networks": {}}'),
    "digest": lambda file: file.write_text(json.dumps({"version": 1, "networks": {f"{MODULE}:Net": 3}})),
    "bytes": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "long": lambda file: file.write_text(" " * 2**21),
    "open to others": lambda file: file.chmod(0o666),
    "folder": lambda file: (file.unlink(), file.mkdir(mode=0o700)),
    "pipe": lambda file: (file.unlink(), os.mkfifo(file, 0o600)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_list_trusts_nothing_and_says_so(
    canary: Canary, trusted_file: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trust_network(f"{MODULE}:Net")
    assert remember(f"{MODULE}:Net") == ""
    new_process(monkeypatch)
    assert is_trusted(f"{MODULE}:Net")
    DAMAGE[kind](trusted_file)
    assert not is_trusted(f"{MODULE}:Net")
    assert f"and the list of trusted networks {trusted_file} is not used (" in refusal(f"{MODULE}:Net")
    assert not canary.sang
    trust_network("other:Net")
    assert "replaced by a list" in remember("other:Net") or kind == "folder"
    assert is_trusted("other:Net")


def test_a_folder_that_takes_no_file_is_a_warning(
    canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configuration").write_text("no folder")
    heard: list[Any] = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        finish(zoo.add.work(task(), f"{MODULE}:Net", trials=1, recipe=QUICK), heard.append)
        assert "zero" in zoo
    assert [one.text for one in heard if isinstance(one, Caution) and "later commands need --trust" in one.text]


def test_many_at_once_are_all_remembered(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"package{number}:Net" for number in range(40)]
    for name in names:
        trust_network(name)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(remember, names)) == {""}
    new_process(monkeypatch)
    assert all(map(is_trusted, names))


def test_no_home_no_memory(canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    trust_network(f"{MODULE}:Net")
    assert remember(f"{MODULE}:Net") == ""
    assert (tmp_path / "home" / ".config" / "nearkin" / "trusted.json").is_file()
    assert not (tmp_path / "relative").exists()


def test_the_check_costs_no_torch() -> None:
    code = "import sys, nearkin.nets.trusted_code; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "network",
    [
        "mlp?hidden=999999999",
        "mlp?hidden=30000-30000",
        "lenet?width=1e9",
        "resnet18?width=1e300",
        "vgg16?width=1000",
        "densenet121?width=1000",
        "autoencoder?width=1e6",
        "recurrent?layers=999999999",
        "recurrent?hidden=999999999",
        "recurrent?layers=1000&hidden=99999",
        "mlp?hidden=" + "9" * 5000,
        f"{SEARCHED}?genotype=normal(0):1~conv3(0);out~1&channels=65536&growth=65536",
        f"{SEARCHED}?genotype=normal(0):1~conv3(0);out~1&num_cells=999999999",
        "nearkin.solve.simple.machines:kernel_machine?vectors=999999999",
        "nearkin.solve.simple.machines:boosted_trees?trees=999999999&nodes=999999999",
        "nearkin.solve.simple.machines:boosted_trees?trees=-1&nodes=-1",
        "nearkin.solve.simple.machines:averaged_trees?trees=999999999&nodes=999999999",
        f"{TANGENT}?network=mlp&outputs=2&points=9999999999",
        f"{TANGENT}?network=mlp&outputs=9999999999&points=2",
        f"{TANGENT}?network=mlp%3Fhidden%3D999999999&outputs=2&points=2",
        f"{TANGENT}?network={TANGENT.replace(':', '%3A')}%3Fnetwork%3Dmlp&outputs=2&points=2",
    ],
)
def test_absurd_sizes_are_one_error_before_memory_is_taken(network: str) -> None:
    shape = (5,) if network.startswith("recurrent") else SHAPE
    with pytest.raises(NearkinError) as refused:
        build(network, shape, 2, seed=0)
    assert "\n" not in str(refused.value)
    assert "MemoryError" not in str(refused.value)
    assert "allocate" not in str(refused.value)


@pytest.mark.parametrize(
    "shape", [(1, 10**6, 10**6), (0, 8, 8), (-1, 8, 8), ("8", "8"), (8.0, 8), ([8], 8), (True, "x")]
)
def test_absurd_shapes_too(shape: Any) -> None:
    with pytest.raises(NearkinError):
        build("mlp", shape, 2, seed=0)
