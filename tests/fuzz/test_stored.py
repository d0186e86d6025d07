"""Fuzzed stored files: bundles, model files, solutions, checkpoints, stages, searches and journals.

States are mutated without their checksum, as files of an older version are: with it, every mutation is refused at once.
"""

import base64
import hashlib
import io
import json
import os
import random
import stat
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from fuzz.mutation import FuzzCount, fuzz, mutated
from fuzz.structure import mutated_json, mutated_state
from nearkin.core.budget import Budget
from nearkin.core.errors import DataError
from nearkin.core.events import Checkpoint, Note, Progress, Work, finish
from nearkin.core.plain import CHECKSUM, sealed
from nearkin.core.state import State
from nearkin.nets.adopted_spec import ADOPTED, AdoptedSpec
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.run.checkpoints import FolderCheckpoints
from nearkin.run.journal import FOLDER, ZOO_MARK, journals, write_journal
from nearkin.run.stages import StageCache
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.random_search import random_search
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import SearchResult, run_search
from nearkin.search.spaces.general import GeneralSpace
from nearkin.solver.contenders import Contender, trained_network
from nearkin.solver.solution import Solution
from nearkin.store.bundle import MANIFEST, export_bundle, import_bundle
from nearkin.store.read_only import ReadOnlyStore
from nearkin.tasks.task import Task
from nearkin.web.work import work_facts
from nearkin.zoo import model_file as modelfile
from report.solutions import of_tables

Count = Callable[[FuzzCount], FuzzCount]
RECIPE = Recipe(steps=4, batch_size=8, precision="float32")
NETWORK = "mlp?hidden=4"


def _bytes(made: object) -> bytes:
    assert isinstance(made, bytes)
    return made


@pytest.fixture(scope="module")
def toy() -> Task:
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    return Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())


@pytest.fixture(scope="module")
def solved(toy: Task, tmp_path_factory: pytest.TempPathFactory) -> State:
    """A model file's state."""
    file = tmp_path_factory.mktemp("model") / "toy.safetensors"
    modelfile.train(toy, NETWORK, RECIPE, 0, torch.device("cpu"), file)
    return State.load(file)


def _captured(work: Work[Any], number: int) -> State:
    """What the checkpoint of that number captures."""
    captures = [event.capture() for event in work if isinstance(event, Checkpoint)]
    return captures[number]


def test_model_files(solved: State, toy: Task, tmp_path: Path, count_inputs: Count) -> None:
    data, file = solved.to_bytes(), tmp_path / "toy.safetensors"

    def read(made: object) -> None:
        file.write_bytes(_bytes(made))
        modelfile.loaded(file).scores_on(toy)

    read(data)
    count_inputs(fuzz("model files", lambda rng: mutated_state(data, rng), read))


def test_solutions(solved: State, toy: Task, tmp_path: Path, count_inputs: Count) -> None:
    solved.save(tmp_path / "toy.safetensors")
    planted = of_tables()
    kept = [one for one in planted.standings if one.name == planted.chosen or one.kind == "simple"]
    standings = tuple(replace(one, curve=one.curve[:2], search=None) for one in kept)
    solution = replace(
        planted, solved=modelfile.loaded(tmp_path / "toy.safetensors"), task=toy.facts(), standings=standings,
        quality=replace(planted.quality, residuals=planted.quality.residuals[:3]),
    )  # fmt: skip
    data = solution.to_state().to_bytes()
    x = torch.zeros(2, *toy.input_shape)

    def read(made: object) -> None:
        found = Solution.from_state(State.from_bytes(_bytes(made), "the file"), "the file")
        json.dumps(found.to_dict())
        found.to_state().to_bytes()
        assert found.metric <= found.metric + found.parameters
        found.predict(x)

    read(data)
    count_inputs(fuzz("solutions", lambda rng: mutated_state(data, rng), read))


def test_checkpoints_of_training(toy: Task, count_inputs: Count) -> None:
    recipe = Recipe(steps=4, batch_size=8, precision="float32", averaging=0.6, patience=3)

    def work(start: State | None) -> Work[Any]:
        model = build(NETWORK, toy.input_shape, toy.num_outputs, 0)
        return fit.work(model, toy, recipe, resume=start)

    data = _captured(work(None), 0).to_bytes()

    def read(made: object) -> None:
        finish(work(State.from_bytes(_bytes(made), "the file")))

    read(data)
    count_inputs(fuzz("training checkpoints", lambda rng: mutated_state(data, rng), read))


def test_stages(solved: State, toy: Task, tmp_path: Path, count_inputs: Count) -> None:
    """A stage that cannot be read is done again; what follows reads it as the contest does."""
    facts = {"network": NETWORK, "fit": dict(solved.facts["fit"]), "settings": {}}
    done, contender = State(solved.tensors, facts), Contender(name="toy", title="toy", kind="searched", task=toy)

    def work(start: State | None) -> Work[State]:
        if start is not None:
            trained_network(start, contender)
        yield Note("done anew")
        return done

    cache = StageCache(FolderCheckpoints(tmp_path))
    finish(cache.stage("train", {}, work))
    (file,) = tmp_path.glob("*.safetensors")
    part = file.with_suffix(".part")
    data = State(done.tensors, {"state": facts, "spent": 1.0}).to_bytes()

    def read(made: object) -> None:
        place, content = made  # type: ignore[misc]
        file.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        (file if place else part).write_bytes(content)
        cache = StageCache(FolderCheckpoints(tmp_path))
        state = finish(cache.stage("train", {}, work))
        trained_network(state, contender)[0].model()
        assert cache.seconds >= 0

    read((True, data))
    count_inputs(fuzz("stages", lambda rng: (rng.random() < 0.7, mutated_state(data, rng)), read))


class Lengths(Objective):
    """An objective that costs nothing."""

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        yield from ()
        return ObjectiveValue(float(len(str(genotype))), {"length": 1.0})

    def settings(self) -> dict[str, float]:
        return {}


def test_states_of_searches(count_inputs: Count) -> None:
    def work(start: State | None) -> Work[SearchResult]:
        return run_search.work(random_search(GeneralSpace((3,)), Lengths()), Budget(evaluations=4), resume=start)

    data = _captured(work(None), 1).to_bytes()

    def read(made: object) -> None:
        outcome = finish(work(State.from_bytes(_bytes(made), "the file")))
        SearchResult.from_dict(json.loads(json.dumps(outcome.to_dict())))

    read(data)
    count_inputs(fuzz("searches", lambda rng: mutated_state(data, rng), read))


def test_journals(tmp_path: Path, count_inputs: Count) -> None:
    (tmp_path / ZOO_MARK).touch()
    with write_journal(tmp_path, ["add", "zero"]) as listen:
        listen(Progress("zero", 1, 2, {"loss": 0.5, "accuracy": 0.25}))
        listen(Note("a line"))
        listen(Progress("zero", 2, 2, {"loss": 0.25}))
    (file,) = (tmp_path / FOLDER).glob("*.json")
    data, entry = file.read_bytes(), asdict(journals(tmp_path)[0])

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return mutated(data, rng)
        text = json.dumps(mutated_json(entry, rng))
        return (text if rng.random() > 0.02 else "[" * 100_000 + text).encode()

    def read(made: object) -> None:
        file.write_bytes(_bytes(made))
        facts = work_facts(ReadOnlyStore(tmp_path))
        json.dumps(facts, allow_nan=False).encode()
        if not [run for run in facts["runs"] if run["state"] != "damaged"]:
            raise DataError("passed over")

    read(data)
    count_inputs(fuzz("journals", make, read))


def _bundle(manifest: Any, blobs: dict[str, bytes], rng: random.Random | None = None) -> bytes:
    """A bundle; with a generator, one whose members are not as they should be."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as bundle:
        bundle.writestr(zipfile.ZipInfo(MANIFEST), manifest if isinstance(manifest, str) else json.dumps(manifest))
        for name, data in blobs.items():
            bundle.writestr(zipfile.ZipInfo(f"blobs/{name}"), data)
        if rng is not None:
            for _ in range(rng.randint(1, 2)):
                _odd_member(bundle, list(blobs), rng)
    return target.getvalue()


def _odd_member(bundle: zipfile.ZipFile, digests: list[str], rng: random.Random) -> None:
    names = (
        MANIFEST,
        f"blobs/{rng.choice(digests)}",
        "../../evil",
        "/evil",
        "blobs/../evil",
        "blobs/" + "f" * 64,
        "\0",
    )
    info = zipfile.ZipInfo(rng.choice(names))
    kind = rng.choice((stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFREG))
    info.external_attr = (kind | 0o777) << 16
    info.create_system = 3
    content = rng.choice((b"/etc/passwd", b"", bytes(10**6), rng.randbytes(20)))
    with warnings.catch_warnings(action="ignore"):  # of a name that is there twice
        bundle.writestr(info, content, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)))


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not on a disk where the system has such: thousands of durable writes would take minutes."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_bundles(toy: Task, memory_folder: Path, count_inputs: Count) -> None:
    tmp_path = memory_folder
    with nk.Zoo(tmp_path / "from") as zoo:
        zoo.add(toy, NETWORK, trials=1, recipe=RECIPE)
        export_bundle(zoo.catalogue, tmp_path / "toy.zoo")
    data = (tmp_path / "toy.zoo").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        manifest = json.loads(bundle.read(MANIFEST))
        blobs = {name.removeprefix("blobs/"): bundle.read(name) for name in bundle.namelist() if name != MANIFEST}

    def make(rng: random.Random) -> bytes:
        match rng.randrange(6):
            case 0:
                return mutated(data, rng)
            case 1:
                return _bundle(manifest, blobs, rng)
            case 2:  # a blob of other content, under its own digest
                old = rng.choice(sorted(blobs))
                content = mutated_state(blobs[old], rng)
                new = hashlib.sha256(content).hexdigest()
                told = json.loads(json.dumps(manifest).replace(old, new))
                for artifact in told["tasks"][0]["artifacts"]:
                    artifact["size"] = len(content) if artifact["digest"] == new else artifact["size"]
                return _bundle(told, {**{key: value for key, value in blobs.items() if key != old}, new: content})
            case 3:
                return _bundle(mutated_json(manifest, rng), blobs)
            case _:
                told = json.loads(json.dumps(manifest))
                told["tasks"][0] = mutated_json(told["tasks"][0], rng)
                return _bundle(told, blobs)

    file = tmp_path / "mutated.zoo"
    with nk.Zoo(tmp_path / "to") as zoo:

        def read(made: object) -> None:
            file.write_bytes(_bytes(made))
            try:
                taken = import_bundle(zoo.catalogue, file)
            except Exception:
                assert not zoo.records(), "a refused bundle left a task"
                assert not list(zoo.catalogue.blobs.digests()), "a refused bundle left blobs"
                raise
            try:
                for name in taken:
                    zoo.record(name).to_dict()
                    json.dumps([item.to_dict() for item in zoo.catalogue.artifacts(name)])
                    zoo.solved(name).scores_on(toy)
                    zoo.fisher(name).unit_trace()
                    zoo.task(name)
            finally:
                for name in taken:
                    zoo.remove(name)

        read(data)
        count_inputs(fuzz("bundles", make, read))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from", "mutated.zoo", "to", "toy.zoo"]


def test_pushed_models(toy: Task, memory_folder: Path, count_inputs: Count) -> None:
    """Folders whose manifest or weights are changed; checksums are those of the changed files."""
    with nk.Zoo(memory_folder / "from") as zoo:
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        zoo.adopt("layers", layers, task=toy, licence="mit")
        zoo.add(toy, NETWORK, trials=1, recipe=RECIPE)
        for name in ("layers", "toy"):
            zoo.push(name, memory_folder / name)
    manifests = {name: json.loads((memory_folder / name / "nearkin.json").read_text()) for name in ("layers", "toy")}
    weights = {name: (memory_folder / name / "model.safetensors").read_bytes() for name in manifests}
    x = torch.zeros(2, *toy.input_shape)

    def make(rng: random.Random) -> tuple[str, bytes, bytes]:
        name = rng.choice(("layers", "toy"))
        facts, content = {key: value for key, value in manifests[name].items() if key != CHECKSUM}, weights[name]
        match rng.randrange(5):
            case 0:
                return name, mutated(sealed(facts), rng), content
            case 1:
                content = mutated_state(State(State.from_bytes(content).tensors).to_bytes(), rng)
            case 2:
                spec = AdoptedSpec.parse(manifests["layers"]["network"].partition("spec=")[2])
                text = json.dumps(mutated_json({**asdict(spec), "fields": []}, rng)).encode()
                packed = base64.urlsafe_b64encode(zlib.compress(text)).decode().rstrip("=")
                name, content = "layers", weights["layers"]
                facts = {**manifests[name], "network": f"{ADOPTED}?spec={packed}"}
                del facts[CHECKSUM]
            case _:
                facts = mutated_json(facts, rng)
        files = facts.get("files") if isinstance(facts, dict) else None
        if isinstance(files, dict):
            digest = hashlib.sha256(content).hexdigest()
            facts = {**facts, "files": {**files, "model.safetensors": {"bytes": len(content), "sha256": digest}}}
        try:
            return name, sealed(facts), content
        except (TypeError, ValueError):  # NaN
            return name, json.dumps(facts).encode(), content

    with nk.Zoo(memory_folder / "to") as zoo:

        def read(made: object) -> None:
            name, manifest, content = made  # type: ignore[misc]
            (memory_folder / name / "nearkin.json").write_bytes(manifest)
            (memory_folder / name / "model.safetensors").write_bytes(content)
            try:
                record = zoo.pull(memory_folder / name)
            except Exception:
                assert not zoo.models(), "a refused folder left a model"
                assert not list(zoo.catalogue.blobs.digests()), "a refused folder left blobs"
                raise
            try:
                json.dumps(record.to_dict())
                zoo.solved(record.name).model()(x)
                zoo.push(record.name, memory_folder / "again", overwrite=True)
            finally:
                zoo.remove(record.name)

        for name in manifests:
            read((name, json.dumps(manifests[name]).encode(), weights[name]))
        count_inputs(fuzz("pushed models", make, read))
