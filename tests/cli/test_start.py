"""What a command does not need it does not wait for."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("sklearn", "pandas", "matplotlib", "scipy.stats", "scipy.optimize", "gpytorch", "starlette")

PROGRAM = """
import sys
from nearkin.cli.app import main
sys.argv = ["nearkin", "-q", "add", "zero", "digits?detect=0&limit=60", "--network", "mlp?hidden=4", "--trials", "1",
            "--epochs", "1"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", [name for name in {heavy} if name in sys.modules])
"""


@pytest.mark.soak
def test_a_training_imports_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    program = PROGRAM.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_the_limit_on_memory_is_a_global_option(tmp_path: Path) -> None:
    def answer(limit: str) -> str:
        words = [
            sys.executable,
            "-m",
            "nearkin",
            "--max-bytes",
            limit,
            "train",
            "digits?size=100",
            "--out",
            "x.safetensors",
        ]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    assert "error: --max-bytes is 'lots', expected a number of bytes such as 4GiB" in answer("lots")
    assert "takes 17.2 MiB, the limit is 977 KiB" in answer("1MB")


NEAR = """
import sys
import nearkin as nk
from nearkin.cli.app import main
with nk.Zoo("nearkin-zoo") as zoo:
    for digit in (0, 6):
        zoo.add(nk.task(f"digits?detect={digit}&limit=60", name=f"is it {digit}"), "mlp?hidden=4", trials=1,
                recipe=nk.Recipe(steps=2))
for words in (["near", "is it 0"], ["matrix"]):
    sys.argv = ["nearkin", "-q", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
above = ("nearkin.search", "nearkin.solver", "nearkin.transfer")
print("loaded:", sorted(name for name in sys.modules if name.startswith(above)))
"""


def test_comparing_tasks_imports_no_module_of_search_transfer_or_solve(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NEAR], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
