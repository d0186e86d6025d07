"""Laws of every place where states of unfinished work are stored."""

import torch

from nearkin.core.events import Caution, Event, finish
from nearkin.core.state import State
from nearkin.run.checkpoints import Checkpoints, read_stored


class CheckpointsLaws:
    """Inherit, and give a fixture `where` that holds nothing."""

    def test_what_is_written_is_read(self, where: Checkpoints) -> None:
        assert where.read("a") is None
        assert where.names() == []
        where.write("a", State({"w": torch.arange(3)}, {"step": 1}))
        where.write("a", State({"w": torch.arange(4)}, {"step": 2}))
        state = where.read("a")
        assert state is not None
        assert (state.facts["step"], state.tensors["w"].tolist()) == (2, [0, 1, 2, 3])
        assert where.names() == ["a"]

    def test_what_is_removed_is_gone(self, where: Checkpoints) -> None:
        where.remove("a")
        where.write("a", State({}))
        where.write("b", State({}))
        where.remove("a")
        assert where.read("a") is None
        assert where.names() == ["b"]
        where.clear()
        assert where.names() == []

    def test_parts_do_not_see_each_other(self, where: Checkpoints) -> None:
        one, two = where.within("one"), where.within("two")
        where.write("a", State({}, {"of": 0}))
        one.write("a", State({}, {"of": 1}))
        two.write("a", State({}, {"of": 2}))
        assert [place.read("a").facts["of"] for place in (where, one, two)] == [0, 1, 2]  # type: ignore[union-attr]
        assert [place.names() for place in (where, one)] == [["a"], ["a"]]
        one.clear()
        assert (one.read("a"), where.names(), two.names()) == (None, ["a"], ["a"])

    def test_what_cannot_be_used_is_put_aside_and_named(self, where: Checkpoints) -> None:
        where.write("a", State({}, {"step": 1}))
        heard: list[Event] = []
        assert finish(read_stored(where, "a", lambda state: state.facts["missing"]), heard.append) is None
        [caution] = heard
        assert isinstance(caution, Caution)
        assert "it was renamed to a.damaged, and this part of the work is done again" in caution.text
        assert where.names() == ["a.damaged"]
        assert where.read("a") is None
