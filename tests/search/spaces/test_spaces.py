import pytest

from nearkin.core.errors import OptionError
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import nasbench201, transnas101
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.registry import SPACES, register_space, space


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("general", GeneralSpace()),
        ("full", GeneralSpace()),
        ("general?nodes=3", GeneralSpace((3,))),
        (" general?nodes=2-3&operations=conv3+conv7x1-1x7 ", GeneralSpace((2, 3), ("conv3", "conv7x1-1x7"))),
        ("darts", DartsSpace()),
        ("darts?nodes=2&reduction=false", DartsSpace(num_nodes=2, reduction=False)),
        ("darts?inputs=1&predecessors=1", DartsSpace(num_inputs=1, num_predecessors=1)),
        ("enas?nodes=2", DartsSpace(ENAS_OPERATIONS, num_nodes=2, name="enas")),
        ("nasbench201", nasbench201()),
        ("transnas101", transnas101()),
        ("mobile", MobileSpace()),
        ("mobile?stages=2-1&kernels=3&skip_first=true", MobileSpace((2, 1), (3,), skip_first=True)),
        ("recurrent?nodes=12&loose_ends=true", RecurrentSpace(12, loose_ends=True)),
        ("recurrent?activations=tanh+relu", RecurrentSpace(activations=("tanh", "relu"))),
    ],
)
def test_texts_name_spaces(text: str, wanted: Space) -> None:
    assert space(text) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("genral", "did you mean general"),
        ("zzz", "choose one of darts, enas, full"),
        ("general?node=3", "did you mean nodes"),
        ("nasbench201?nodes=3", "no option 'nodes'; it has none"),
        ("general?nodes", "name=value"),
        ("general?nodes=3&nodes=4", "given twice"),
        ("general?nodes=three", "whole numbers"),
        ("darts?nodes=2-3", "a whole number"),
        ("darts?reduction=2", "true or false"),
        ("general?nodes=1", "at least 2 nodes"),
        ("darts?predecessors=3", "predecessors"),
        ("general?operations=conv3+conv3", "each once"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        space(text)


def test_own_spaces_have_names_of_their_own() -> None:
    register_space("tiny", lambda nodes=2: GeneralSpace((nodes,), ("zero", "conv3")))
    try:
        assert space("tiny?nodes=3").size() == 8
        with pytest.raises(OptionError, match="already"):
            register_space("tiny", GeneralSpace)
    finally:
        del SPACES["tiny"]
    with pytest.raises(OptionError, match="name"):
        register_space("a?b", GeneralSpace)
