"""What `solve` chooses does not depend on the labels of the target's test part."""

from dataclasses import replace

import pytest
import torch

import nearkin as nk
from nearkin.solver.plan import Plan
from nearkin.solver.solving import solve
from nearkin.tasks.rows import Values

CONTENDERS = ("kin-search", "finetune", "transfer", "lenet", "logistic", "svm")


@pytest.mark.slow
def test_every_choice_is_the_same_bit_for_bit_with_other_test_labels(
    kin_zoo: nk.Zoo, target: nk.Task, quick: Plan
) -> None:
    y = target.test.labels()
    permuted = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    other = replace(target, test=replace(target.test, targets=Values(permuted)), source="")
    plan = replace(quick, only=CONTENDERS, join=False)
    one, two = (solve(task, kin_zoo, plan=plan) for task in (target, other))
    assert one.chosen == two.chosen
    assert one.standing.genotype == two.standing.genotype
    assert [(s.name, s.validation) for s in one.standings] == [(s.name, s.validation) for s in two.standings]
    assert one.temperature == two.temperature
    told, again = one.relations.to_dict(), two.relations.to_dict()
    assert {**told, "seconds": 0} == {**again, "seconds": 0}
    assert one.metric > two.metric  # the labels were others, and the answer was not
