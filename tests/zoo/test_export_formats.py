import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, MissingExtraError, OptionError
from nearkin.core.rng import seeded
from nearkin.core.state import State
from nearkin.nets.functional import blank, num_parameters
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.networks.named import network_string
from nearkin.search.networks.operations import OPERATIONS, Builder, plain, register
from nearkin.zoo.export_formats import agreement, export_onnx, export_python, export_torch, load_network
from nearkin.zoo.predictor import Predictor
from nearkin.zoo.python_source import Preprocessing, python_source

CASES: dict[str, tuple[str, Skeleton, tuple[int, ...]]] = {
    "darts": (
        "normal(0, 1): 2 = sep_conv_3x3(0) + skip_connect(1); 3 = dil_conv_5x5(1) + avg_pool_3x3(2); out = concat(2, 3)"
        "| reduction(0, 1): 2 = max_pool_3x3(0) + skip_connect(1); 3 = sep_conv_5x5(0) + skip_connect(2);"
        "out = concat(2, 3)",
        Skeleton(channels=4, num_cells=4, stem_factor=3, drop_path=0.2, dropout=0.1, auxiliary=True),
        (3, 11, 9),
    ),
    "general": (
        "normal(0): 1 = conv7x1-1x7(0); 2 = zero(0) + dil3(1); 3 = identity(0) + conv5(1) + max3(2); out = 3",
        Skeleton(channels=4, num_cells=2, stem_stride=4, between="pool", growth=1),
        (1, 28, 28),
    ),
    "nasbench201": (
        "normal(0): 1 = nor_conv_3x3(0); 2 = none(0) + skip_connect(1);"
        "3 = nor_conv_1x1(0) + none(1) + avg_pool_3x3(2); out = 3",
        Skeleton(channels=4, num_cells=3),
        (3, 16, 16),
    ),
    "dense": (
        "normal(0): 1 = conv3(0); 2 = identity(0) + max3(1); out = 2",
        Skeleton(channels=4, num_cells=2, stem_stride=2, reductions=(1,), dropout=0.1, dense=True),
        (2, 11, 9),
    ),
    "nothing": ("normal(0): out = nothing", Skeleton(channels=4, num_cells=2), (1, 8, 8)),
    "chain": (
        "chain: mbconv(expansion=3, kernel=5); skip; skip; mbconv(expansion=6, kernel=3)",
        Skeleton(channels=8, stages=(2, 2), dropout=0.2),
        (3, 16, 16),
    ),
    "recurrent": (
        "recurrent(0): 1 = tanh(0); 2 = relu(1); 3 = identity(1); 4 = sigmoid(0); out = mean(2, 3, 4)",
        Skeleton(channels=8, dropout=0.1, weight_drop=0.2),
        (7,),
    ),
}
TINY: dict[str, tuple[str, Skeleton, tuple[int, ...]]] = {
    "general": (
        "normal(0): 1 = conv7x1-1x7(0) + max3(0); 2 = zero(0) + dil3(1) + avg3(0); out = 2",
        Skeleton(channels=2, num_cells=2, stem_stride=2, between="pool", growth=1),
        (1, 8, 8),
    ),
    "chain": ("chain: mbconv(expansion=3, kernel=3); skip", Skeleton(channels=2, stages=(2,), dropout=0.2), (1, 8, 8)),
    "recurrent": (
        "recurrent(0): 1 = tanh(0); 2 = sigmoid(1); out = mean(1, 2)",
        Skeleton(channels=2, dropout=0.1),
        (2,),
    ),
}


def options(shape: tuple[int, ...]) -> Preprocessing:
    """No scaling; tokens where the input has one axis."""
    return Preprocessing("values", 0 if len(shape) == 1 else len(shape), 1, 1)


def source_of(
    genotype: Genotype, skeleton: Skeleton, shape: tuple[int, ...], outputs: int, notes: tuple[str, ...] = ()
) -> str:
    return python_source(network_string(genotype, skeleton), shape, outputs, options(shape), notes=notes)


def write_python(
    model: nn.Module, file: Path, genotype: Genotype, skeleton: Skeleton, shape: tuple[int, ...], outputs: int,
    notes: tuple[str, ...] = (),
) -> float:  # fmt: skip
    complete = Predictor(model, *options(shape)[:5]).eval()
    return export_python(
        complete, file, network_string(genotype, skeleton), shape, outputs, options(shape), notes=notes
    )


# Runs every exported file in a Python that has torch and no nearkin.
DRIVER = """
import contextlib, importlib.util, runpy, sys
from pathlib import Path
folder, packages = Path(sys.argv[1]), sys.argv[2]
sys.path.append(packages)
sys.modules["nearkin"] = None
import torch
torch.set_num_threads(1)
for file in sorted(folder.glob("*.py")):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.load(str(file.with_suffix(".safetensors")))
    given = torch.load(file.with_suffix(".inputs.pt"), weights_only=True)
    with torch.no_grad():
        torch.save({"outputs": model(given), "count": sum(p.numel() for p in module.build().parameters())},
                   file.with_suffix(".outputs.pt"))
    with open(file.with_suffix(".txt"), "w") as printed, contextlib.redirect_stdout(printed):
        for _ in range(2):  # with the weights beside it, then without
            sys.argv = [str(file)]
            runpy.run_path(str(file), run_name="__main__")
            file.with_suffix(".safetensors").unlink(missing_ok=True)
"""


def made(
    name: str, cases: dict[str, tuple[str, Skeleton, tuple[int, ...]]] = CASES
) -> tuple[nn.Module, Genotype, Skeleton, tuple[int, ...]]:
    text, skeleton, shape = cases[name]
    genotype = Genotype.parse(text)
    model = build_network(genotype, skeleton, shape, 6, seed=5)
    with seeded(0):
        model(inputs(model, shape, 16))  # in training mode: batch norms get statistics of their own
    return model.eval(), genotype, skeleton, shape


def inputs(model: nn.Module, shape: tuple[int, ...], size: int) -> Tensor:
    x, rng = blank(model, shape, size), torch.Generator().manual_seed(1)
    return torch.randn(x.shape, generator=rng) if x.is_floating_point() else torch.randint(6, x.shape, generator=rng)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all cases, exported, and their outputs as an isolated Python computed them."""
    folder = tmp_path_factory.mktemp("exported")
    for name in CASES:
        model, genotype, skeleton, shape = made(name)
        (folder / f"{name}.py").write_text(source_of(genotype, skeleton, shape, 6))
        complete = Predictor(model, *options(shape)[:5])
        State(complete.state_dict(), {}).save(folder / f"{name}.safetensors")
        torch.save(inputs(model, shape, 4), folder / f"{name}.inputs.pt")
    driver = folder / "driver"
    driver.write_text(DRIVER)
    packages = str(Path(torch.__file__).parents[1])
    command = [sys.executable, "-I", "-S", str(driver), str(folder), packages]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return folder


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", CASES)
def test_the_python_file_gives_our_outputs_where_nearkin_is_not(elsewhere: Path, name: str) -> None:
    model, _, _, shape = made(name)
    found = torch.load(elsewhere / f"{name}.outputs.pt", weights_only=True)
    assert agreement(model, inputs(model, shape, 4), found["outputs"]) <= 1e-5
    assert found["count"] == num_parameters(model)


@pytest.mark.parametrize("name", CASES)
def test_the_python_file_knows_torch_and_the_standard_library_alone(name: str) -> None:
    text, skeleton, shape = CASES[name]
    source = source_of(Genotype.parse(text), skeleton, shape, 6, ("Inputs are scaled.",))
    tree = ast.parse(source)
    modules = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert modules - set(sys.stdlib_module_names) == {"torch", "safetensors", "numpy"}  # numpy for npy files only
    assert ">>>" not in source
    assert "type: ignore" not in source
    assert "Inputs are scaled." in (ast.get_docstring(tree) or "")
    used = {operation for operation in OPERATIONS if f'    "{operation}":' in source}
    assert all(operation in text for operation in used)


def test_a_trained_network_is_written_and_read_back(tmp_path: Path) -> None:
    model, genotype, skeleton, shape = made("darts")
    export_torch(model, tmp_path / "a.safetensors", genotype, skeleton, shape, 6, {"classes": ["a"] * 6})
    again = load_network(tmp_path / "a.safetensors")
    assert agreement(model, inputs(model, shape, 4), again(inputs(model, shape, 4))) == 0
    assert not again.training
    assert State.load(tmp_path / "a.safetensors").facts["classes"] == ["a"] * 6
    assert write_python(model, tmp_path / "a.py", genotype, skeleton, shape, 6) <= 1e-5


@pytest.mark.parametrize("name", CASES)
def test_the_python_file_runs_as_a_script_without_and_with_weights(elsewhere: Path, name: str) -> None:
    model, _, _, shape = made(name)
    outputs = list(model(blank(model, shape, 2)).shape)
    wanted = f"{num_parameters(model)} parameters, outputs {outputs}\n"
    assert (elsewhere / f"{name}.txt").read_text() == 2 * wanted


def test_notes_may_be_of_any_characters(tmp_path: Path) -> None:
    model, genotype, skeleton, shape = made("chain", TINY)
    notes = ('Classes are """, a\\, \\n and ü.', "word " * 50)
    write_python(model, tmp_path / "a.py", genotype, skeleton, shape, 6, notes)
    tree = ast.parse((tmp_path / "a.py").read_text(encoding="utf-8"))
    told = ast.get_docstring(tree)
    assert told is not None
    assert notes[0] in told
    assert told.count("word") == 50
    assert max(map(len, told.splitlines())) <= 120


def test_broken_files_are_refused(tmp_path: Path) -> None:
    model, genotype, skeleton, shape = made("general")
    file = tmp_path / "a.safetensors"
    State({}, {}).save(file)
    with pytest.raises(DataError, match="is not an exported network"):
        load_network(file)
    export_torch(model, file, genotype, skeleton, shape, 6)
    state = State.load(file)
    State(state.tensors, {"network": {**state.facts["network"], "version": 99}}).save(file)
    with pytest.raises(DataError, match="version 99"):
        load_network(file)
    State({name: value for name, value in state.tensors.items() if name != "head.weight"}, state.facts).save(file)
    with pytest.raises(DataError, match="do not fit"):
        load_network(file)
    with pytest.raises(DataError, match="check the path"):
        load_network(tmp_path / "none")


def test_disagreement_is_refused() -> None:
    with seeded(0):
        model, x = nn.Linear(3, 2), torch.randn(4, 3).div(10)
    outputs = model(x).detach()
    assert agreement(model, x, outputs + 4e-6) == pytest.approx(4e-6, rel=0.1)
    with pytest.raises(MismatchError, match=r"differs from the network by 0\.01"):
        agreement(model, x, outputs + 0.01)
    with pytest.raises(MismatchError, match="shape"):
        agreement(model, x, outputs[:2])


# Operations of one's own


def blurred(channels: int, stride: int, affine: bool, side: int = 5) -> nn.Module:
    return nn.AvgPool2d(side, stride, padding=side // 2)


def squeezing(width: int) -> Builder:
    def build(channels: int, stride: int, affine: bool) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1, stride))

    return build


@pytest.fixture
def own() -> Iterator[None]:
    before = set(OPERATIONS)
    register("blur5", blurred)
    register("blur7", functools.partial(blurred, side=7))
    register("squeeze2", squeezing(2))
    register("wide", plain(9))
    register("nameless", lambda channels, stride, affine: nn.Identity())
    yield
    for name in set(OPERATIONS) - before:
        del OPERATIONS[name]


def test_own_operations_are_written_too(own: None, tmp_path: Path) -> None:
    genotype = Genotype.parse("normal(0): 1 = blur5(0) + blur7(0); 2 = squeeze2(1) + wide(0); out = 2")
    skeleton = Skeleton(channels=4, num_cells=2)
    model = build_network(genotype, skeleton, (1, 8, 8), 3)
    write_python(model, tmp_path / "own.py", genotype, skeleton, (1, 8, 8), 3)
    source = (tmp_path / "own.py").read_text()
    assert '"squeeze2": squeezing(width=2)' in source
    assert '"blur7": functools.partial(blurred, side=7)' in source


def test_operations_without_a_name_cannot_be_written(own: None) -> None:
    with pytest.raises(OptionError, match="top level"):
        source_of(Genotype.parse("normal(0): 1 = nameless(0); out = 1"), Skeleton(), (1, 8, 8), 3)


# ONNX


def test_onnx_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[export\]"):
        export_onnx(nn.Linear(2, 1), tmp_path / "a.onnx", (2,))


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_onnx_takes_batches_of_any_size(name: str, tmp_path: Path) -> None:
    missing = [part for part in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(part) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import onnxruntime

    model, _, _, shape = made(name, TINY)
    assert export_onnx(model, tmp_path / "a.onnx", shape) <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    for size in (1, 5):
        x = inputs(model, shape, size)
        (outputs,) = session.run(None, {"x": x.numpy()})
        assert agreement(model, x, torch.from_numpy(outputs)) <= 1e-5


@pytest.mark.parametrize("quotes", ['"""', '""""', '"""""', '\\"""', '\\\\"""', "'''", '"\\\n"""'])
def test_notes_from_a_file_stay_text(tmp_path: Path, quotes: str) -> None:
    """The names of classes and tasks are written into the file, which is run to check it."""
    trace = tmp_path / "trace"
    note = f"{quotes}\nopen({str(trace)!r}, 'w').close()\n{quotes}"
    genotype, skeleton = Genotype.parse("normal(0): 1 = conv3(0); out = 1"), Skeleton(channels=2, num_cells=1)
    model = build_network(genotype, skeleton, (1, 8, 8), 2)
    write_python(model, tmp_path / "net.py", genotype, skeleton, (1, 8, 8), 2, (note, quotes))
    assert not trace.exists()
