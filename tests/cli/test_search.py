"""`add --cell`, `search` and `export-model` as a person or a script calls them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import nearkin as nk
from calling import Call
from nearkin.core.state import State
from nearkin.solver.simple.models import fit_simple
from nearkin.tasks.examples import Scaling
from nearkin.zoo.export import exported
from nearkin.zoo.export_formats import load_network

QUICK = ("--network", "mlp?hidden=16", "--trials", "1", "--epochs", "2")
SMALL = ("--channels", "4", "--epochs", "2", "--json")
KEYS = {"genotype", "metric", "parameters", "multiply_adds", "seconds", "evaluations"}


@pytest.fixture
def four(call: Call) -> None:
    assert call("add", "four", "digits?classes=0,1,2,3&rest=other&limit=150", *QUICK, "--json").code == 0


@pytest.mark.soak
@pytest.mark.usefixtures("four")
def test_a_searched_network_leaves_the_house(call: Call, tmp_path: Path) -> None:
    said = call("search", "four", "--method", "random", "--space", "general?nodes=3", "--evaluations", "2", *SMALL,
                "--out", "m.safetensors")  # fmt: skip
    assert said.code == 0, said.err
    assert said.json.keys() >= KEYS
    assert said.json["evaluations"] == 2
    found = nk.Zoo("nearkin-zoo").architecture("four")
    assert found is not None
    again = call("evaluate", "m.safetensors", "--json").json
    assert again["metric"] == pytest.approx(said.json["metric"], abs=1e-12)

    python = call("export-model", "four", "--to", "python", "--json").json
    assert python["files"] == ["four.py", "four.safetensors"]
    assert python["error"] <= 1e-5
    x = torch.randn(3, *found.facts["input_shape"], generator=torch.Generator().manual_seed(0))
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; sys.modules['nearkin'] = None; sys.path.insert(0, '.'); import four; "
        "net = four.load('four.safetensors').eval(); "
        "torch.save(net(torch.load('x.pt')).detach(), 'y.pt')"
    )
    subprocess.run([sys.executable, "-I", "-c", script], check=True, cwd=tmp_path)
    scaling = Scaling.from_dict(found.facts["scaling"])
    with torch.no_grad():
        assert torch.allclose(torch.load(tmp_path / "y.pt"), found.model()(scaling(x)).softmax(1), atol=1e-5)
    assert call("export-model", "m.safetensors", "--to", "torch", "--out", "w.safetensors").code == 0
    assert "four.py exists" in call("export-model", "four", "--to", "python").err
    (tmp_path / "four.py").unlink()
    assert "four.safetensors exists" in call("export-model", "four", "--to", "python").err
    before = (tmp_path / "m.safetensors").read_bytes()
    for words in (("--to", "python", "--out", "m.py"), ("--to", "torch", "--out", "m.safetensors")):
        assert "is the model itself" in call("export-model", "m.safetensors", *words, "--overwrite").err
    assert (tmp_path / "m.safetensors").read_bytes() == before
    assert call("export-model", "m.safetensors", "--to", "python", "--json").json["files"][0] == "m-exported.py"


def test_a_genotype_is_trained_like_any_network(call: Call) -> None:
    text = "normal(0): 1 = conv3(0); 2 = identity(0) + max3(1); out = 2"
    said = call("train", "digits?limit=150", "--genotype", text, "--channels", "4", "--steps", "5", "--json")
    assert said.code == 0, said.err
    assert "conv3(0)" in said.json["network"]
    assert call("evaluate", "model.safetensors", "--json").json["metric"] == pytest.approx(said.json["metric"])
    bad = call("train", "digits?limit=150", "--genotype", text + "!", "--out", "other.safetensors")
    assert (bad.code, bad.err.count("\n")) == (1, 1)
    assert "error: genotype, position" in bad.err


def test_the_kin_gives_its_cells(call: Call) -> None:
    added = call("add", "zero", "digits?detect=0&limit=150", *QUICK, "--cell", "--cell-evaluations", "2", "--json")
    assert added.code == 0, added.err
    kept = added.json["cells"]["found"]
    assert len(kept) == 2
    assert kept[0]["score"] >= kept[-1]["score"]
    said = call("search", "digits?detect=6&limit=150", "--method", "kin", "--evaluations", "2", *SMALL)
    assert said.code == 0, said.err
    assert said.json["kin"] == "zero"
    assert said.json["space"] == "general"
    assert said.json["genotype"] in {one["genotype"] for one in kept}  # as many questions as there are given cells
    named = call("search", "digits?detect=6&limit=150", "--method", "local", "--space", "zero", "--evaluations", "2",
                 *SMALL)  # fmt: skip
    assert "restricted" in named.json["space"]
    assert named.json["genotype"] == said.json["genotype"]  # the given cells come first in any method


def test_an_add_that_stopped_before_its_cells_goes_on_with_them(call: Call) -> None:
    data = "digits?detect=0&limit=150"
    assert call("add", "zero", data, *QUICK, "--json").code == 0
    added = call("add", "zero", data, *QUICK, "--cell", "--cell-evaluations", "2", "--json")
    assert added.code == 0
    assert len(added.json["cells"]["found"]) == 2
    twice = call("add", "zero", data, *QUICK, "--cell")
    assert twice.code == 1
    assert "zero" in twice.err


@pytest.mark.usefixtures("four")
def test_bad_questions_end_in_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "there.safetensors").write_bytes(b"")
    cases = [
        (("--method", "fused", "--space", "full"), "unknown method 'fused'"),
        (("--method", "random", "--space", "generall"), "did you mean general?"),
        ((), "no other task of the zoo has cells"),
        (("--method", "random", "--space", "four"), "'four' has no cells"),
        (("--method", "pcdarts", "--space", "nearest"), "use --space full"),
        (("--method", "random", "--space", "general?nodes=3", "--parameters", "10"), "has parameters <= 10"),
        (("--method", "random", "--space", "full", "--option", "tournament=3"), "random has no option tournament"),
        (("--space", "full", "--option", "patience=two"), "option patience of fuse is 'two', expected a whole number"),
        (("--space", "full", "--option", "patience=2", "--option", "patience=3"), "patience is given twice"),
        (("--space", "recurrent"), "fuse cannot search the space recurrent for 'four', a categorical task; use"),
        (("--method", "random", "--space", "full", "--option", "tournament"), "name=value"),
        (("--space", "full", "--out", "there.safetensors"), "there.safetensors exists"),
        (("--space", "full", "--out", "there.bin"), "ends in .safetensors"),
    ]
    before = nk.Zoo("nearkin-zoo").catalogue.artifacts("four")
    for words, line in cases:
        said = call("search", "four", *words)
        assert (said.code, said.out) == (1, ""), words
        assert said.err.strip().splitlines()[-1].startswith("error:")
        assert line in said.err, words
    assert nk.Zoo("nearkin-zoo").catalogue.artifacts("four") == before
    assert "use it for images and --to onnx" in call("export-model", "four", "--to", "python", "--bytes").err
    assert "torch, onnx, python" in call("export-model", "four", "--to", "c").err


@pytest.mark.soak
@pytest.mark.slow
def test_the_selected_model_of_a_solution_is_exported(call: Call, tmp_path: Path) -> None:
    data = "digits?classes=0,1,2&rest=drop&limit=150"
    said = call("solve", "low", data, "--evaluations", "1", "--epochs", "2", "--only", "full-search", "--json")
    assert said.code == 0, said.err
    file = "low-solution/solution.safetensors"
    before = Path(file).read_bytes()
    solution = nk.Solution.load(file)
    task = nk.task(data)
    x = task.test.first(5).x
    for model, stem in ((file, "of-file"), ("low", "of-zoo")):
        done = call("export-model", model, "--to", "torch", "--out", f"{stem}.safetensors", "--json")
        assert done.code == 0, done.err
        assert done.json["network"] == said.json["network"]
        with torch.no_grad():
            again = load_network(tmp_path / f"{stem}.safetensors")(x)
            assert torch.allclose(again, solution.model(x), atol=1e-5)
    assert Path(file).read_bytes() == before
    assert call("export-model", file, "--to", "torch", "--out", file, "--overwrite").code == 1
    trial = call("export-model", "low", "--trial", "0", "--out", "t.safetensors", "--json").json
    assert trial["network"] == "lenet"
    assert "'low' has trials 0 to 2" in call("export-model", "low", "--trial", "7", "--out", "u.safetensors").err


def test_a_simple_model_leaves_the_house(call: Call, tmp_path: Path) -> None:
    data = "digits?classes=0,1,2&rest=drop&limit=150"
    said = call("solve", "low", data, "--evaluations", "1", "--epochs", "1", "--only", "logistic", "--json")
    assert said.code == 0, said.err
    file = "low-solution/solution.safetensors"
    done = call("export-model", file, "--json")
    assert done.json["files"] == ["solution-exported.safetensors"]
    plain = load_file(tmp_path / "solution-exported.safetensors")
    task = nk.task(data)
    x, y = task.test.all()
    right = (x.flatten(1) @ plain["weight"].T + plain["bias"]).argmax(1) == y
    assert float(right.double().mean()) == pytest.approx(said.json["metric"])
    assert call("export-model", file, "--to", "python", "--out", "net.py").code == 0
    (tmp_path / "strange.safetensors").write_bytes(State({"w": torch.ones(1)}, {"format": "else"}).to_bytes())
    assert "is not a model file of nearkin" in call("export-model", "strange.safetensors").err


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "svm", "boosting"])
def test_simple_models_are_written_as_onnx(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    task = nk.task("digits?classes=0,1,2&rest=drop&limit=100", name="low")
    done = fit_simple(kind, task, seconds=1)
    solved = nk.Solved("low", done.network, task.facts(), 0, (done.fit,))
    assert exported(solved, "onnx", tmp_path / "m.onnx")["error"] <= 1e-5
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"x": task.test.inputs.take(torch.arange(7)).numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(outputs), solved.model()(task.test.first(7).x).softmax(1), atol=1e-5)


def test_a_search_with_shared_weights_reports_its_forgetting(call: Call, tmp_path: Path) -> None:
    tiny = ("--option", "epochs=2", "--option", "batch_size=16", "--option", "controller_steps=1")
    ask = ("search", "digits?limit=100", "--method", "enas", "--space", "enas?nodes=2", *tiny, "--cells", "2", *SMALL)
    said = call(*ask, "--plasticity", "--option", "plasticity_warmup=1", "--report", "s.html")
    assert said.code == 0, said.err
    forgetting = said.json["forgetting"]
    assert [epoch["architectures"] for epoch in forgetting["epochs"]] == [5, 5]
    assert forgetting["maximum"] == max(epoch["maximum"] for epoch in forgetting["epochs"])
    page = (tmp_path / "s.html").read_text("utf-8")
    assert "How much was forgotten?" in page
    assert "--plasticity" in page
    plain = call(*ask, "--option", "watched=0").json
    assert plain["forgetting"] is None
    refused = call("search", "digits?limit=100", "--method", "random", "--space", "full", "--plasticity")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "random trains every genotype by itself" in refused.err
    assert "or use random-shared, darts, pcdarts, enas or nao" in refused.err
    assert "expected a file name that ends in .html" in call(*ask, "--report", "s.txt").err


def test_the_options_of_a_method_are_listed_without_a_target(call: Call) -> None:
    for words in (("--method", "evolution", "--options"), ("--options", "--method", "evolution")):
        said = call("search", *words)
        assert said.code == 0, said.err
        assert re.search(r"population +10 +number of members", said.out)
    assert "evolution" in call("search", "--options").out
    assert "unknown method 'evolve'" in call("search", "--method", "evolve", "--options").err


@pytest.mark.soak
def test_without_seed_cells_the_control_is_pure_and_says_so(call: Call) -> None:
    words = ("--cell", "--cell-evaluations", "2", "--cell-method", "fuse", "--option", "candidates=2",
             "--option", "alternations=2", "--json")  # fmt: skip
    added = call("add", "zero", "digits?detect=0&limit=150", *QUICK, *words)
    assert added.code == 0, added.err
    assert added.json["cells"]["method"] == "fuse"
    asked = ("search", "digits?detect=6&limit=150", "--method", "random", "--evaluations", "1", "--channels", "4",
             "--epochs", "2")  # fmt: skip
    assert call(*asked, "--json").json["seed_cells"] is True
    assert call(*asked, "--no-seed-cells", "--json").json["seed_cells"] is False
    said = call(*asked, "--no-seed-cells")
    assert "the space of 'zero', without its cells" in said.out.replace("\n", " ")


def test_cells_that_cannot_be_searched_are_refused_before_the_training(call: Call, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60)))
    for words, line in (
        (("csv:table.csv?target=y",), "architectures are searched for images"),
        (("digits?limit=150", "--cell-method", "evolve"), "unknown method 'evolve'"),
        (
            ("digits?limit=150", "--option", "patience=3"),
            "evolution has no option patience; its options are population",
        ),
    ):
        said = call("add", "some", *words, *QUICK, "--cell")
        assert (said.code, said.err.count("\n")) == (1, 1), said.err
        assert line in said.err
        assert not (tmp_path / "nearkin-zoo").exists()


@pytest.mark.soak
def test_an_architecture_for_images_as_outputs_goes_the_whole_way(call: Call, tmp_path: Path) -> None:
    data = "digits?dense=edges&limit=100"
    said = call("search", data, "--space", "full", "--option", "candidates=2", "--option", "alternations=2",
                "--steps", "1", *SMALL, "--out", "edges.safetensors")  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["skeleton"]["dense"] is True
    again = call("evaluate", "edges.safetensors", "--json").json
    assert again["metric"] == pytest.approx(said.json["metric"], abs=1e-12)
    assert (
        call("export-model", "edges.safetensors", "--to", "python", "--out", "net.py", "--json").json["error"] <= 1e-5
    )
    script = "import sys; sys.modules['nearkin'] = None; import runpy; sys.argv[:] = ['net.py']; "
    script += "runpy.run_path('net.py', run_name='__main__')"
    shown = subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "outputs [2, 1, 8, 8]" in shown.stdout
    added = call("add", "edges", data, "--network", again["network"], "--trials", "1", "--steps", "3", "--json")
    assert added.code == 0, added.err
    assert added.json["parameters"] == said.json["parameters"]
    refused = call("search", data, "--method", "darts", "--space", "full")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "use fuse, side-by-side, random, evolution, local or warm-start" in refused.err
