"""AutoGluon on one table: a peer that runs in an environment of its own, started by `benchmarks/solve.py --autogluon`.

    PYTHON benchmarks/solve_autogluon.py FOLDER SECONDS OUT

PYTHON belongs to an environment with `autogluon.tabular[lightgbm,catboost,xgboost]`. FOLDER holds `train.csv` with a
column `target`, and `test.csv` without it. OUT gets the predictions, CPU and wall seconds as JSON.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path


def cpu_seconds() -> float:
    """CPU time of this process and its children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def fit(folder: Path, seconds: float, out: Path) -> None:
    """Fit with default settings, one core and a time limit, and predict the test rows."""
    import pandas as pd
    from autogluon import tabular

    train, test = (pd.read_csv(folder / f"{name}.csv") for name in ("train", "test"))
    values = json.loads((folder / "facts.json").read_text())["values"]
    problem = "regression" if values else "binary" if train["target"].nunique() == 2 else "multiclass"
    begun, cpu = time.perf_counter(), cpu_seconds()
    with tempfile.TemporaryDirectory() as place:
        predictor = tabular.TabularPredictor("target", problem_type=problem, path=place, verbosity=0)
        predictor.fit(train, time_limit=seconds, num_cpus=1, num_gpus=0)
        predicted = predictor.predict(test)
        times = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - begun}
        version = tabular.__version__
        out.write_text(
            json.dumps({"predicted": predicted.tolist(), "chosen": predictor.model_best, "version": version, **times})
        )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        fit(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
    else:
        print("started by: python benchmarks/solve.py --autogluon PYTHON")
