"""Counts, durations, shares and metrics as they are written for people."""

import math

from nearkin.report.words import NOT_COMPARABLE, number

MANY = 2000
"""Test samples from which on a fourth decimal of a metric means something."""

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def counted(value: float) -> str:
    """A whole number with commas.

    >>> counted(1234567), counted(12)
    ('1,234,567', '12')
    """
    return f"{round(value):,}"


def brief(value: float) -> str:
    """A large number in three figures and a unit.

    >>> [brief(value) for value in (0.5, 12, 1234, 20000, 999_600, 3.21e6)]
    ['0.5', '12', '1.23 k', '20 k', '1 M', '3.21 M']
    """
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            return f"{float(f'{value / size:.3g}'):g} {unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """A span of time in at most two units.

    >>> [duration(value) for value in (0.0, 0.034, 9.96, 75, 3600, 90061)]
    ['0 s', '0.03 s', '10 s', '1 min 15 s', '1 h', '25 h 1 min']
    """
    if not math.isfinite(seconds):
        return NOT_COMPARABLE
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.1g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small, units = (
        (*divmod(whole, 60), ("min", "s")) if whole < 3600 else (*divmod(whole // 60, 60), ("h", "min"))
    )
    return f"{large} {units[0]}" + (f" {small} {units[1]}" if small else "")


def percent(share: float) -> str:
    """A share in percent; what is not quite all or nothing does not look so.

    >>> percent(0.123), percent(0.9996), percent(1.0), percent(0.0004)
    ('12 %', '99.96 %', '100 %', '0.04 %')
    """
    if not math.isfinite(share):
        return NOT_COMPARABLE
    near = 100 * min(abs(share), abs(1 - share))
    if 0 < near < 0.005:
        return "> 99.99 %" if share > 0.5 else "< 0.01 %"
    places = 0 if near >= 9.5 or near == 0 else 1 if near >= 0.05 else 2
    return f"{100 * share:.{places}f} %"


def places_of(count: int) -> int:
    """Decimals of a metric that so many samples bear.

    >>> places_of(360), places_of(10_000)
    (3, 4)
    """
    return 3 if count < MANY else 4


def metric(value: float | None, places: int) -> str:
    """A metric; a dash where there is none.

    >>> metric(0.97312, 3), metric(None, 3)
    ('0.973', '–')
    """
    return NOT_COMPARABLE if value is None else number(value, places)
