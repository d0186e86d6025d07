"""Facts about search methods: one entry each, and messages that follow from the entries."""

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import MismatchError, OptionError
from nearkin.search.registry import BUDGET, EVALUATIONS, METHODS, method_named
from nearkin.search.spaces.registry import space
from nearkin.solver.plan import Plan


def test_names_and_aliases_are_unique_and_lead_to_their_method() -> None:
    names = [name for method in METHODS.values() for name in (method.name, *method.aliases)]
    assert len(set(names)) == len(names)
    assert all(name in (method_named(name).name, *method_named(name).aliases) for name in names)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_facts_of_a_method_agree(method: nk.search.registry.Method) -> None:
    assert method.summary
    assert "\n" not in method.summary
    assert (BUDGET in method.needs) != bool(method.ends), "a method ends by itself or needs a budget"
    assert method.budget(None, None, None).evaluations == (EVALUATIONS if BUDGET in method.needs else None)
    assert method.budget(None, 5, None).evaluations is None
    for domain in method.spaces.values():
        assert isinstance(space(domain.full).at(0), domain.genotypes), (
            "the whole space holds what the method can search"
        )


def test_a_method_that_begins_with_no_cells_is_refused_by_solve_and_others_are_named() -> None:
    for name, method in METHODS.items():
        if method.kin_cells == "none":
            with pytest.raises(OptionError, match=f"{name} trains one network for a whole space") as refused:
                Plan(method=name)
            advised = str(refused.value).partition("; use ")[2]
            assert all(
                (other in advised) == (METHODS[other].kin_cells != "none") for other in ("fuse", "local", "warm-start")
            )
        else:
            assert Plan(method=name).method == name
    assert Plan(method="kin").method == "warm-start"
    assert Plan(measures=("kin", "logme")).measures == ("short-finetune", "logme")


def test_a_task_that_a_method_cannot_search_for_is_refused_and_others_are_named() -> None:
    x = torch.rand(12, 1, 8, 8)
    dense = nk.Task.from_arrays("squares", x, x.square(), likelihood="dense")
    with pytest.raises(MismatchError, match=r"darts searches for images .* values, and 'squares' .* use fuse,"):
        METHODS["darts"].require_suited(dense)
    assert METHODS["evolution"].full_space(dense) == "general"
