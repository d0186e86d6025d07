"""Time shares of a run, the check of flips, and a whole run with a time limit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.solver.allocation import CONTINUED, Role, cnn_recipe, continued, further_rank, regime
from nearkin.solver.plan import Plan
from nearkin.solver.solving import solve
from nearkin.solver.svm_checks import THRESHOLD, mirror_ratio


def images(count: int, classes: int, size: int = 8) -> nk.Task:
    x = torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))
    return nk.Task.from_arrays("images", x, torch.arange(count) % classes)


def test_images_favour_one_cnn_and_tables_all_models() -> None:
    few, many = regime(images(100, 10)), regime(images(2000, 10))
    assert few.main == many.main == ("cnn",)
    assert (few.few_labels, many.few_labels) == (True, False)
    table = nk.Task.from_arrays("table", torch.randn(50, 4), torch.arange(50) % 2)
    assert {"logistic", "svm", "boosting", "forest", "extra-trees", "mlp"} == set(regime(table).main)


def test_roles_and_the_order_of_further_contenders() -> None:
    favoured = regime(images(2000, 10))
    kinds = {"cnn": "made", "svm": "simple", "transfer": "transfer", "finetune": "tuned", "vgg16": "made"}
    roles = [favoured.role(name, kind) for name, kind in kinds.items()]
    assert roles == [Role.MAIN, Role.QUICK, Role.FURTHER, Role.FURTHER, Role.FURTHER]
    assert regime(images(300, 10)).role("transfer", "transfer") == Role.QUICK, "it can use all labels"
    assert further_rank("finetune") < further_rank("kin-search") < further_rank("vgg16")


def test_a_continued_training_has_half_of_the_rate_and_time() -> None:
    first = replace(cnn_recipe(images(100, 2, 28), flip=True), seconds=10.0)
    assert (first.augment, first.smoothing, first.optimiser) == ("crop=3,flip", 0.1, "sgd")
    second = continued(first)
    assert (second.seconds, second.learning_rate) == (CONTINUED * 10.0, first.learning_rate / 2)
    values = nk.Task.from_arrays("values", torch.randn(40, 1, 8, 8), torch.randn(40, 1))
    assert (cnn_recipe(values, flip=False).smoothing, cnn_recipe(values, flip=False).optimiser) == (0.0, "adam")


def test_only_runs_with_a_time_limit_are_focused() -> None:
    assert Plan(budget=nk.Budget(minutes=1)).focused
    assert not Plan(budget=nk.Budget(minutes=1), compare_all=True).focused
    assert not Plan(budget=nk.Budget(evaluations=1)).focused
    assert Plan(budget=nk.Budget(cpu_minutes=1)).focused
    assert Plan(budget=nk.Budget(minutes=0.05)).hurried, "simple models only"
    assert Plan(budget=nk.Budget(minutes=0.5)).quick_measures == ("logme",)
    assert "frechet" not in Plan(budget=nk.Budget(minutes=1)).quick_measures
    assert Plan(budget=nk.Budget(minutes=1), measures=("frechet",)).quick_measures == ("frechet",)
    assert "frechet" in Plan(budget=nk.Budget(minutes=5)).quick_measures


def test_flips_are_valid_where_mirrored_images_keep_their_class() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    noise = 0.3 * torch.randn(200, 1, 8, 8, generator=rng)
    bright = noise + labels.view(-1, 1, 1, 1)
    sided = noise.clone()
    sided[labels == 0, :, :, :4] += 1
    sided[labels == 1, :, :, 4:] += 1
    assert mirror_ratio(nk.Task.from_arrays("bright", bright, labels)) > THRESHOLD
    assert mirror_ratio(nk.Task.from_arrays("sided", sided, labels)) < 0.2


@pytest.mark.soak
@pytest.mark.slow
def test_a_limited_run_trains_the_cnn_most_and_scores_only_final_models_on_the_test_set(tmp_path: Path) -> None:
    task = nk.task("digits?limit=400", name="some digits")
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = solve(task, zoo, plan=Plan(budget=nk.Budget(cpu_minutes=0.25), join=False))
    results = {result.name: result for result in solution.standings}
    assert {"cnn", "svm"} <= set(results)
    assert all(result.test is None for result in results.values())
    assert set(solution.finals) <= set(results)
    assert solution.chosen in solution.finals
    assert solution.metric == solution.finals[solution.chosen]
    trainings = {stage.stage: stage.seconds for stage in solution.stages if stage.stage.startswith("training")}
    assert max(trainings, key=trainings.__getitem__) == "training: CNN"
    assert next(iter(trainings)) == "training: CNN", (
        "the main contender is trained before anything that could take longer"
    )
    assert solution.seconds < 15 * 1.1
