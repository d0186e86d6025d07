"""The clock of time limits."""

import time

import nearkin as nk
from nearkin.core.clock import larger_share, now, timed_by
from nearkin.core.events import Note, Work, finish


def test_the_clock_holds_inside_the_work_and_not_in_its_listener() -> None:
    inside: list[float] = []
    outside: list[float] = []

    def work() -> Work[None]:
        for _ in range(3):
            inside.append(now())
            yield Note("step")

    finish(timed_by(lambda: -1.0, work()), lambda _: outside.append(now()))
    assert inside == [-1.0] * 3
    assert min(outside) > 0


def test_the_clock_is_restored_when_the_work_fails() -> None:
    def work() -> Work[None]:
        yield Note("step")
        raise ValueError

    try:
        finish(timed_by(lambda: -1.0, work()))
    except ValueError:
        assert now() > 0


def test_nested_clocks_hold_each_for_its_own_work() -> None:
    seen: list[float] = []

    def inner() -> Work[None]:
        seen.append(now())
        yield Note("inner")

    def outer() -> Work[None]:
        yield from timed_by(lambda: 2.0, inner())
        seen.append(now())

    finish(timed_by(lambda: 1.0, outer()))
    assert seen == [2.0, 1.0]


def test_the_larger_share_counts() -> None:
    clock = larger_share(wall=1000.0, processor=1.0)
    start, used = clock(), time.process_time()
    while time.process_time() - used < 0.05:
        pass
    assert clock() - start >= 50.0, "a twentieth of the processor time is a twentieth of the limit"
    idle = larger_share(wall=1.0, processor=1000.0)
    start, before = idle(), time.perf_counter()
    time.sleep(0.05)
    assert idle() - start >= 0.05 <= time.perf_counter() - before


def test_a_budget_of_processor_time_does_not_count_waiting() -> None:
    clock = nk.Budget(cpu_minutes=1).clock()
    start = clock()
    time.sleep(0.2)
    assert clock() - start < 0.15
    assert nk.Budget(minutes=1).clock() is time.perf_counter
    assert nk.Budget(cpu_minutes=0.5).spent(31.0, 0, 0) == "0.5 minutes"
    assert nk.Budget(minutes=4, cpu_minutes=1).used(wall=1.0, processor=2.0) == 8.0
