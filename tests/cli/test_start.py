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
