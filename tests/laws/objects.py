"""Laws of every place of named byte objects."""

import os
from collections.abc import Callable

import pytest

from nearkin.core.errors import DataError
from nearkin.core.objects import Objects


class ObjectsLaws:
    """Inherit, and give a fixture `place`: opens the same place every time, which holds nothing at first."""

    def test_what_is_written_is_read(self, place: Callable[[], Objects]) -> None:
        objects, again = place(), place()
        for data in (b"first", b"", os.urandom(3_000_000), b"last"):
            objects.write("a/b.bin", data)
            assert again.read("a/b.bin") == b"".join(again.chunks("a/b.bin")) == data
            assert again.size("a/b.bin") == len(data)
            assert 0 <= again.age("a/b.bin") < 60

    def test_what_is_not_there(self, place: Callable[[], Objects]) -> None:
        objects = place()
        assert (objects.read("a"), objects.size("a"), objects.age("a")) == (None, None, -1)
        assert (objects.names(), objects.entries(), objects.leftovers()) == ([], [], [])
        with pytest.raises(FileNotFoundError):
            list(objects.chunks("a"))
        objects.remove("a")
        objects.move("a", "b")
        objects.clear()

    def test_names_are_those_of_one_level(self, place: Callable[[], Objects]) -> None:
        objects = place()
        for name in ("b", "a", "ab/c", "ab/d/e"):
            objects.write(name, name.encode())
        assert (objects.names(), objects.entries()) == (["a", "b"], ["a", "ab", "b"])
        assert (objects.within("ab").names(), objects.within("ab").entries()) == (["c"], ["c", "d"])
        assert objects.within("ab").within("d").read("e") == b"ab/d/e"
        assert objects.within("a").entries() == []

    def test_changes_of_another_process_are_seen(self, place: Callable[[], Objects]) -> None:
        one, two = place(), place()
        for turn in range(3):
            one.write(f"{turn}", b"x" * turn)
            assert (two.names(), two.size(f"{turn}")) == ([f"{turn}"], turn)
            two.remove(f"{turn}")
            assert (one.names(), one.read(f"{turn}"), one.size(f"{turn}")) == ([], None, None)

    def test_a_moved_object_has_one_name(self, place: Callable[[], Objects]) -> None:
        objects = place()
        objects.write("a", b"data")
        objects.move("a", "b")
        assert (objects.names(), objects.read("b")) == (["b"], b"data")

    def test_clearing_stays_within(self, place: Callable[[], Objects]) -> None:
        objects = place()
        for name in ("a", "one/a", "one/b/c", "ones"):
            objects.write(name, b"x")
        objects.within("one").clear()
        assert (objects.names(), objects.within("one").entries()) == (["a", "ones"], [])
        objects.clear()
        assert objects.entries() == []

    @pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", ".", "a/"])
    def test_no_name_leaves_the_place(self, place: Callable[[], Objects], name: str) -> None:
        objects = place()
        for use in (objects.read, objects.size, objects.remove, objects.within, lambda name: objects.write(name, b"")):
            with pytest.raises(DataError, match="an object is named"):
                use(name)
