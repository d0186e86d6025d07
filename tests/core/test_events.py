"""Work that yields events, and how it is stopped and saved."""

import inspect
import pickle

import pytest

from interrupting import counting
from nearkin.core.events import Event, Note, Progress, Work, finish, listening, operation


def test_works_compose() -> None:
    def twice() -> Work[int]:
        first = yield from counting(3)
        second = yield from counting(4)
        return first + second

    assert finish(twice()) == 6 + 10


def test_an_error_inside_the_work_comes_out() -> None:
    def failing() -> Work[None]:
        yield Progress("x", 1)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        finish(failing())


@operation
def doubled(number: int, *, times: int = 2) -> Work[int]:
    """The number, times two."""
    yield Note(f"doubling {number}")
    return times * number


class Account:
    """An owner of an operation."""

    def __init__(self, balance: int) -> None:
        self.balance = balance

    @operation
    def paid(self, amount: int) -> Work[int]:
        """The balance after a payment that is doubled."""
        self.balance += yield from doubled.work(amount)
        return self.balance


def test_an_operation_is_called_or_yields_its_events() -> None:
    assert doubled(3) == 6
    assert [event.text for event in doubled.work(3) if isinstance(event, Note)] == ["doubling 3"]
    account = Account(1)
    assert account.paid(2) == 5
    heard: list[Event] = []
    assert finish(account.paid.work(amount=5), heard.append) == 15
    assert heard == [Note("doubling 5")]


def test_listening_hears_every_call_in_its_block() -> None:
    heard: list[Event] = []
    with listening(heard.append):
        doubled(1)
        Account(0).paid(2)
        with listening(lambda event: None):
            doubled(3)
    doubled(4)
    assert heard == [Note("doubling 1"), Note("doubling 2")]


def test_an_operation_looks_like_the_function_it_was() -> None:
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "The number, times two.")
    assert Account(0).paid.__doc__ == Account.paid.__doc__ == "The balance after a payment that is doubled."
    assert list(inspect.signature(Account(0).paid).parameters) == ["amount"]
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_the_old_argument_for_listeners_is_deprecated() -> None:
    heard: list[Event] = []
    with pytest.warns(DeprecationWarning, match=r"listen= is deprecated; use `with nk.listening"):
        assert doubled(1, listen=heard.append) == 2  # type: ignore[call-arg]
    assert heard == [Note("doubling 1")]


def test_a_listener_that_raises_ends_the_operation() -> None:
    ended = []

    @operation
    def long() -> Work[None]:
        try:
            yield Note("first")
            yield Note("second")
        finally:
            ended.append(True)

    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        long()
    assert ended == [True]
