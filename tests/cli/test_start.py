"""What a command does not need it does not wait for."""

import subprocess
import sys
from pathlib import Path

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

    assert "error: --max-bytes got 'lots', expected a number of bytes such as 4GiB" in answer("lots")
    assert "takes 17.2 MiB, the limit is 977 KiB" in answer("1MB")
