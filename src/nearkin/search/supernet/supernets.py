"""Layout and supernet of a search space: cells or chains."""

from collections.abc import Sequence

from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.restricted import RestrictedSpace
from nearkin.search.supernet.chain_layout import ChainLayout
from nearkin.search.supernet.chain_supernet import ChainSupernet
from nearkin.search.supernet.choice_layout import ChoiceLayout
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import AnySupernet, Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout


def layout_of(space: Space) -> ChoiceLayout:
    """Layout of the supernet of a space.

    >>> type(layout_of(MobileSpace())).__name__
    'ChainLayout'
    """
    whole = without_limits(space)
    inner = whole.space if isinstance(whole, RestrictedSpace) else whole
    return ChainLayout.of(space) if isinstance(inner, MobileSpace) else SupernetLayout.of(space)


def make_supernet(layout: ChoiceLayout, input_shape: Sequence[int], num_outputs: int, frame: Frame) -> AnySupernet:
    """Supernet of a layout with weights from torch's global generator.

    Args:
        layout: cells or chains.
        input_shape: `(C, H, W)`.
        num_outputs: number of outputs of the linear head.
        frame: macro-architecture.
    """
    if isinstance(layout, ChainLayout):
        return ChainSupernet(layout, input_shape, num_outputs, frame)
    assert isinstance(layout, SupernetLayout)
    return Supernet(layout, input_shape, num_outputs, frame)
