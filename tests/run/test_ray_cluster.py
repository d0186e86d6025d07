"""A Ray cluster of two nodes, of which one is killed in the middle of a distance matrix."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nearkin.store.job_table import open_job_table

pytest.importorskip("ray")
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]

NUM_TASKS = 4


def nearkin(zoo: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "nearkin", "--zoo", str(zoo), *words]
    return subprocess.Popen(command, env={**os.environ, **variables}, text=True, stdout=subprocess.PIPE)


def answer(process: "subprocess.Popen[str]") -> Any:
    text, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    return json.loads(text)


def test_a_killed_node_loses_no_distance(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    for zoo in (tmp_path / "plain", tmp_path / "spread"):
        for number in range(NUM_TASKS):
            data = f"digits?classes={number},{number + 1}&rest=other&limit=300"
            answer(nearkin(zoo, "add", f"task {number}", data, "--network", "lenet", "--trials", "2", "--epochs", "1",
                           "--json"))  # fmt: skip
    measured = ("matrix", "--measure", "finetune", "--json")  # seconds for each pair
    expected = answer(nearkin(tmp_path / "plain", *measured))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        command = nearkin(
            tmp_path / "spread", "--runner", "ray", "--workers", "2", *measured, RAY_ADDRESS=cluster.address
        )
        queue = open_job_table(str(tmp_path / "spread"))
        limit = time.monotonic() + 300
        while len({job.worker for job in queue.jobs() if job.worker}) < 2 and time.monotonic() < limit:
            assert command.poll() is None, "the command has ended before both nodes had a job"
            time.sleep(0.05)
        cluster.remove_node(other, allow_graceful=False)
        result = answer(command)
    finally:
        cluster.shutdown()
    same = ("tasks", "mean", "std", "measure")
    assert {key: result[key] for key in same} == {key: expected[key] for key in same}
    assert queue.jobs() == []
    queue.close()
