"""Figures of long work in TensorBoard's and MLflow's own files, read back with their own readers."""

from pathlib import Path

import pytest

from nearkin.core.events import Note, Progress, Work, finish
from nearkin.run.tracking import mlflow, tensorboard


def counting() -> Work[None]:
    for step in range(1, 4):
        yield Note("nothing to log")
        yield Progress("search, α", step, 3, {"best": step / 4})


def test_tensorboard_has_every_value(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra track is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tensorboard(str(tmp_path)) as listen:
        finish(counting(), listen)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(row.step, row.value) for row in read.Scalars("search, α/best")] == [(1, 0.25), (2, 0.5), (3, 0.75)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("mlflow", reason="the extra track is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the client alone has no other store
    with mlflow(f"file:{tmp_path / 'runs'}", run="a search") as listen:
        finish(counting(), listen)
    (run,) = client.MlflowClient().search_runs([client.get_experiment_by_name("nearkin").experiment_id])
    history = client.MlflowClient().get_metric_history(run.info.run_id, "search_ _/best")
    assert [(row.step, row.value) for row in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert run.info.run_name == "a search"
