"""Commands killed at random moments: the same command, run again, ends in the answer of an uninterrupted run.

After every kill the zoo is sound, and has all tasks that it had before. `$NEARKIN_SOAK_KILLS` is the number of kills
for each command.
"""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nearkin as nk
from faults.processes import ZOO, answer, ended, killed, start_server, started, stored
from nearkin.core.budget import Budget
from nearkin.search.registry import METHODS
from nearkin.solver.contenders import search_skeleton

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("NEARKIN_SOAK_KILLS", "2"))
IN_A_ROW = 5
"""Kills of one run, before it may end."""

LOW, HIGH = "digits?classes=0,1,2&rest=drop&limit=90", "digits?classes=5,6&rest=drop&limit=90"
SHARED = ("--option", "batch_size=16", "--option", "epochs=2", "--cells", "2")
SEARCHES = {
    "fuse": ("--option", "candidates=2", "--option", "alternations=4", "--steps", "2"),
    "side-by-side": ("--option", "candidates=2", "--option", "steps=12", "--steps", "2"),
    "random": ("--space", "general?nodes=3", "--evaluations", "2"),
    "random-shared": ("--space", "full", *SHARED, "--evaluations", "2"),
    "evolution": (
        *("--space", "general?nodes=3", "--evaluations", "3", "--option", "population=2", "--option", "tournament=2"),
    ),
    "local": ("--space", "general?nodes=3", "--evaluations", "2"),
    "warm-start": ("--evaluations", "2"),
    "darts": ("--space", "full", *SHARED),
    "pcdarts": ("--space", "full", *SHARED, "--option", "warmup=0"),
    "enas": ("--space", "full", *SHARED, "--option", "controller_steps=3"),
    "nao": (
        *("--space", "full", *SHARED, "--option", "round_epochs=1", "--option", "pool=4", "--option", "replaced=2"),
        *("--option", "model_steps=20"),
    ),
}
COMMANDS = {
    "add": ("add", "new", LOW, "--network", "mlp?hidden=16", "--trials", "2", "--epochs", "150"),
    "matrix": ("matrix", "--measure", "short-finetune"),
    "interleave": (
        *("interleave", "low", "high", "--space", "general?nodes=3&operations=zero+identity+conv3"),
        *("--search-epochs", "2", "--channels", "4", "--cells", "1", "--epochs", "1"),
        *(word for pair in ("batch_size=24", "num_sets=8", "num_augmentations=3", "every=1", "watched=2", "entropy=0.0")
          for word in ("--option", pair)),
    ),
    "solve": (
        *("solve", "new", "digits?classes=3,5,8&rest=drop&limit=90", "--evaluations", "1", "--networks", "none"),
        *("--epochs", "2", "--only", "kin-search,finetune,lenet,logistic"),
    ),
    **{
        f"search {method}": ("search", HIGH, "--method", method, *words, "--channels", "4", "--epochs", "3")
        for method, words in SEARCHES.items()
    },
}  # fmt: skip


def test_every_method_is_killed() -> None:
    assert SEARCHES.keys() == METHODS.keys()


@pytest.fixture(scope="session")
def known_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of two tasks, one of which has a cell; to be copied."""
    start_server()
    path = tmp_path_factory.mktemp("known") / ZOO
    with nk.Zoo(path) as zoo:
        for name, data in (("low", LOW), ("high", HIGH)):
            task = nk.task(data, name=name)
            zoo.add(task, "mlp?hidden=16", trials=1, recipe=nk.Recipe.suited(task, epochs=2))
            if name == "low":
                zoo.search_cells(name, search_skeleton(task, channels=2), Budget(evaluations=1))
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment_a_command_ends_in_the_same_answer(
    name: str, known_zoo: Path, tmp_path: Path, count_faults: Callable[[str, int, int], None]
) -> None:
    words = ("--quiet", *COMMANDS[name], "--json")
    moments = random.Random(name)

    def copied(number: int) -> Path:
        shutil.copytree(known_zoo, tmp_path / str(number) / ZOO)
        return tmp_path / str(number)

    whole = copied(0)
    begin = time.monotonic()
    expected = answer(ended(whole, started(whole, words)))
    length = time.monotonic() - begin
    bits = stored(whole / ZOO)

    kills, chains = 0, 0
    while kills < KILLS:
        folder, row, tasks = copied(chains + 1), 0, set(stored(known_zoo))
        while row < min(IN_A_ROW, KILLS - kills):
            if not killed(started(folder, words), moments.uniform(0, length)):
                break  # it ended before
            row += 1
            now = set(stored(folder / ZOO))
            assert now >= tasks, "nothing that was listed is lost"
            tasks = now
        kills += row
        if row:
            assert answer(ended(folder, started(folder, words))) == expected
            assert stored(folder / ZOO) == bits
            chains += 1
        else:
            length *= 0.9  # it was faster this time
        shutil.rmtree(folder)
    count_faults(f"SIGKILL in {name}", kills, chains)
