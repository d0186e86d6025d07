"""Options of search methods: typed by their settings, checked by name, all of them described."""

from typing import Any

import pytest

import nearkin as nk
from nearkin.core.errors import OptionError
from nearkin.core.options import read_options
from nearkin.search.networks.build import Skeleton
from nearkin.search.registry import METHODS, SearchProblem, searcher
from nearkin.search.spaces.general import GeneralSpace

ASK = {"space": GeneralSpace((3,), ("zero", "identity", "conv3")), "skeleton": Skeleton(channels=4, num_cells=2)}
BOUNDED = {  # by other options, by 1, or by a list of names
    "tournament": "3", "order": "2", "channel_fraction": "0.5", "path_dropout": "0.5", "output_dropout": "0.5",
    "plasticity_decay": "0.5", "plasticity_importance": "observed", "plasticity_update": "sum",
    "plasticity_schedule": "cosine",
}  # fmt: skip
OTHER = {bool: lambda value: not value, int: lambda value: (value or 0) + 1, float: lambda value: (value or 1.5) / 1.25}


@pytest.fixture(scope="module")
def task() -> nk.Task:
    return nk.task("digits?limit=100")


@pytest.mark.parametrize("method", METHODS)
def test_every_option_is_described_and_changes_the_search(method: str, task: nk.Task) -> None:
    """The settings of a searcher decide which checkpoints it continues: an option that is not among them is lost."""
    plain = searcher(method, SearchProblem(task=task, **ASK)).settings()
    for option in METHODS[method].options:
        assert option.summary, option.name
        other = BOUNDED[option.name] if option.name in BOUNDED else OTHER[option.kind](option.default)
        given = {option.name: str(other).lower()}
        changed = searcher(method, SearchProblem(task=task, options=given, **ASK)).settings()
        assert changed != plain, option.name


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("fuse", {"steps": "3"}, "fuse has no option steps; its options are alpha_rate, alpha_steps, alternations, "),
        ("local", {"population": 3}, "local has no option population; it has none"),
        ("evolution", {"population": "3.5"}, "option population of evolution is '3.5', expected a whole number"),
        ("evolution", {"population": True}, "is True, expected a whole number"),
        ("darts", {"exact": "yes"}, "option exact of darts is 'yes', expected true or false"),
        ("darts", {"clip": "nan"}, "option clip of darts is 'nan', expected a number"),
        ("darts", {"max_skips": "few"}, "option max_skips of darts is 'few', expected a whole number or none"),
        ("darts", {"order": 3}, "order must be 1 or 2, got 3"),
        ("fuse", {"candidates": "0"}, "candidates must be 1 or more, got 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(method: str, given: dict[str, Any], message: str, task: nk.Task) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        searcher(method, SearchProblem(task=task, options=given, **ASK))
    assert "\n" not in str(refused.value)


def test_text_and_values_give_the_same() -> None:
    options = METHODS["darts"].options
    text = {"order": "2", "exact": "False", "learning_rate": "1", "max_skips": "none", "growth": "1.3"}
    plain = {"order": 2, "exact": False, "learning_rate": 1, "max_skips": None, "growth": 1.3}
    assert (
        read_options(options, text, "darts") == read_options(options, plain, "darts") == {**plain, "learning_rate": 1.0}
    )
