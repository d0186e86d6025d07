"""Examples of README, CONTRIBUTING, guides and concept pages run page by page in empty folders; links have targets."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import nearkin as nk
from warm import SCRIPT, warm_command

ROOT = Path(__file__).parents[2]
RUN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "guides").glob("*.md")),
       ROOT / "docs" / "concepts" / "errata.md"]  # fmt: skip
ALL = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)  # what the examples of a page print
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


PLAIN = ("README.md", "solve.md", "start.md", "transfer.md")  # pages that need no extra
LONG = ("README.md", "adopt.md", "complexity.md", "interleave.md", "near-kin.md", "predict.md", "search.md", "serve.md",
        "several-machines.md", "solve.md", "transfer.md", "zoo.md")  # fmt: skip
"""Pages whose examples take six seconds or more, without `start.md`, the first that people read."""
SHORTER = {
    "predict.md": {"--evaluations 1 --only logistic": "--evaluations 1 --only logistic --epochs 1"},
    "README.md": {"--budget 0.25 ": "--budget 0.17 ", "--network lenet ": "--network lenet --trials 1 --epochs 5 "},
    "start.md": {"--trials 2 --epochs 8": "--trials 1 --epochs 4"},
}
"""Figures of a page that its test replaces by smaller ones."""
EXTRAS = ("datasets", "faiss", "fsspec", "gpytorch", "kornia", "mlflow", "onnx", "onnxruntime", "onnxscript", "psycopg",
          "ray", "starlette", "tensorboard", "uvicorn")  # fmt: skip


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with which no package of an extra can be imported, as after a plain `pip install .`."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def plain_command(tmp_path_factory: pytest.TempPathFactory, without_extras: str) -> Iterator[Path]:
    with warm_command(tmp_path_factory.mktemp("plain-bin"), PYTHONPATH=without_extras) as folder:
        yield folder


def run_pages(plain: bool) -> list[ParameterSet]:
    """Pages whose examples are run, with or without the extras; those of `LONG` by `make soak` only."""
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.soak] if page.name in LONG else [])
        for page in RUN
        if (page.name in PLAIN) == plain
    ]


@pytest.mark.parametrize("page", run_pages(plain=True))
def test_examples_run_without_extras(page: Path, tmp_path: Path, plain_command: Path, without_extras: str) -> None:
    run_examples(page, tmp_path, plain_command, PYTHONPATH=without_extras)


@pytest.mark.parametrize("page", run_pages(plain=False))
def test_examples_run(page: Path, tmp_path: Path, command: Path) -> None:
    run_examples(page, tmp_path, command)


def run_examples(page: Path, tmp_path: Path, command: Path, **variables: str) -> None:
    """Python blocks of a page share one namespace and folder with each other and with its shell blocks."""
    shown = page.read_text()
    for figure, smaller in SHORTER.get(page.name, {}).items():
        assert figure in shown
        shown = shown.replace(figure, smaller)
    blocks = BLOCK.findall(shown)
    assert blocks, f"{page.name} shows no example"
    program = ["import subprocess"]
    for kind, text in blocks:
        if kind == "python":
            program.append(text)
        else:
            program.append(f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {text!r}], check=True)")
    file = tmp_path / "page.py"
    file.write_text("\n".join(program))
    surroundings = {
        **os.environ,
        "PATH": f"{command}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    done = subprocess.run(
        [command / SCRIPT, file], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in OUTPUT.findall(shown):
        assert text in done.stdout, f"{page.name} says that its examples print {text!r}; they print {done.stdout}"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_changelog_can_be_tagged() -> None:
    """Keep a Changelog: unreleased changes, then versions with their dates, newest first, under the usual headings."""
    first, *versions = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", version) for version in versions)
    headings = set(re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/nearkin/__init__.py"
    for file in ("README.md", "CITATION.cff", "mkdocs.yml"):
        assert nk.__version__ not in (ROOT / file).read_text()
