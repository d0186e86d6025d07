import gzip
import math
from calendar import monthrange
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch

from nearkin.core.errors import DataError, NearkinError, OptionError
from nearkin.tasks import sources
from nearkin.tasks.papers import precipitation as ushcn

INVENTORY = (
    "011111  31.0581  -87.0547   25.9 AL SANDY CREEK                    ------ ------ ------ +6\n"
    "012222  30.5467  -87.8808    7.0 AL SANDY HILL 2 NE                ------ ------ ------ +6\n"
)


def amount(year, month, day):
    """Hundredths of an inch, different for every day of two years."""
    return (year % 2) * 400 + 31 * (month - 1) + day


def line(station, year, month, element="PRCP", changed=None):
    """One month in fixed columns; `changed` has value and flags `mqs` of some days."""
    cells = []
    for day in range(1, 32):
        value, flags = amount(year, month, day), "  0"
        if day > monthrange(year, month)[1]:
            value, flags = -9999, "   "
        value, flags = (changed or {}).get(day, (value, flags))
        cells.append(f"{value:5d}{flags}")
    return f"{station}{year:4d}{month:02d}{element}" + "".join(cells)


def year_of(station, year, **kwargs):
    return [line(station, year, month, **kwargs) for month in range(1, 13)]


def write(folder, lines, name="state01_AL.txt"):
    data = ("\n".join(lines) + "\n").encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def raw(part):
    """Inputs and targets in the units of the data."""
    return part.inputs.take(torch.arange(len(part))).numpy(), part.labels().numpy()[:, 0]


@pytest.mark.parametrize("name", ["state01_AL.txt", "state01_AL.txt.gz", "anything.dat"])
def test_one_year_of_one_station(tmp_path, name):
    path = write(tmp_path, year_of("011111", 1999), name)
    task = sources.task(f"ushcn:{path}?year=1999")
    assert (task.likelihood, task.classes, task.input_shape) == ("gaussian", ("prcp [inch]",), (1,))
    assert (len(task.train), len(task.test)) == (304, 61)
    for part, days in ((task.train, range(1, 305)), (task.test, range(305, 366))):
        x, y = raw(part)
        assert x[:, 0].tolist() == list(days)
        expected = [
            amount(1999, d.month, d.day) / 100
            for d in (date.fromordinal(date(1998, 12, 31).toordinal() + n) for n in days)
        ]
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_a_leap_year_has_366_days_and_a_mean_365(tmp_path):
    path = write(tmp_path, [*year_of("011111", 2000), *year_of("011111", 2001)])
    leap = sources.task(f"ushcn:{path}?year=2000")
    assert (len(leap.train), len(leap.test)) == (305, 61)
    assert raw(leap.test)[0].max() == 366
    mean = sources.task(f"ushcn:{path}")
    assert (len(mean.train), len(mean.test)) == (304, 61)


def test_without_a_year_days_are_averaged_over_all_and_with_a_span_over_some(tmp_path):
    lines = [text for year in (1998, 1999, 2001) for text in year_of("011111", year)]
    path = write(tmp_path, lines)
    x, y = raw(sources.task(f"ushcn:{path}").train)
    assert (x[31, 0], y[31]) == (32, pytest.approx((0 + 400 + 400) / 300 + 0.32))  # 1 February is amount 32
    _, y = raw(sources.task(f"ushcn:{path}?year=1998-1999").train)
    assert y[0] == pytest.approx((1 + 401) / 200)


def test_missing_and_flagged_days_are_left_out_and_counted(tmp_path):
    odd = {3: (-9999, "   "), 4: (77, " I0"), 5: (0, "T 0"), 6: (0, "P 0")}
    lines = [line("011111", 1999, month, changed=odd if month == 6 else None) for month in range(1, 13)]
    path = write(tmp_path, lines)
    found = ushcn.record(path, "011111")
    assert (len(found.cells), found.flagged, found.missing) == (363, 1, 1)
    june = {cell.day: cell.value for cell in found.cells if cell.month == 6}
    assert set(range(1, 31)) - set(june) == {3, 4}
    assert (june[5], june[6]) == (0, 0)
    assert len(sources.task(f"ushcn:{path}?year=1999").train) == 302


def test_a_mean_skips_the_year_that_lacks_a_day(tmp_path):
    gap = [line("011111", 1999, month, changed={1: (-9999, "   ")}) for month in range(1, 13)]
    path = write(tmp_path, [*year_of("011111", 1998), *gap])
    _, y = raw(sources.task(f"ushcn:{path}").train)
    assert y[0] == pytest.approx(0.01)
    assert y[1] == pytest.approx((2 + 402) / 200)


def test_stations_go_by_number_name_or_a_word_of_it(tmp_path):
    (tmp_path / "ushcn-stations.txt").write_text(INVENTORY)
    path = write(tmp_path, [*year_of("011111", 1999), *year_of("012222", 2000)])
    assert ushcn.stations(tmp_path) == {"011111": "SANDY CREEK", "012222": "SANDY HILL 2 NE"}
    for wanted, count in (("011111", 304), ("Sandy Creek", 304), ("creek", 304), ("hill", 304), ("012222", 304)):
        assert len(sources.task(f"ushcn:{path}?station={wanted}").train) == count
    assert len(sources.task(f"ushcn:{path}?station=hill&year=2000").train) == 305
    for wanted, says in (("sandy", "2 stations match 'sandy'"), ("cree", "no stations match"), ("", "2 stations")):
        with pytest.raises(OptionError, match=rf"{says}.*011111 \(SANDY CREEK\), 012222 \(SANDY HILL 2 NE\)"):
            sources.task(f"ushcn:{path}" + (f"?station={wanted}" if wanted else ""))


def test_every_station_is_a_task_that_reads_again(tmp_path):
    write(tmp_path, [*year_of("011111", 1999), *year_of("012222", 2000)])
    write(tmp_path, [f"1999,{m},{d},{m}" for m in range(1, 13) for d in range(1, 29)], "rain_033333.csv")
    tasks = ushcn.station_tasks(str(tmp_path), {"test": "1,2"})
    assert [len(task.train) for task in tasks] == [306, 306, 280]
    for task in tasks:
        assert sources.task(task.source).fingerprint() == task.fingerprint()
    assert len({task.fingerprint() for task in tasks}) == 3


@pytest.mark.parametrize("header", [[], ["year,month,day,prcp"]])
def test_csv_lines_of_one_station(tmp_path, header):
    lines = [f"1999,{m},{d},{amount(1999, m, d)}" for m in range(1, 13) for d in range(1, monthrange(1999, m)[1] + 1)]
    lines[40] = "1999,2,10,NA"
    lines[41] = "1999,2,11,-9999"
    del lines[50]
    path = write(tmp_path, [*header, *lines], "AL_011111_prcp.csv")
    found = ushcn.record(path, "011111")
    assert (len(found.cells), found.missing, found.flagged) == (362, 3, 0)
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    both = [sources.task(f"ushcn:{p}?year=1999") for p in (path, write(fixed, year_of("011111", 1999)))]
    assert torch.equal(both[0].test.labels(), both[1].test.labels())
    with pytest.raises(OptionError, match="has precipitation only"):
        sources.task(f"ushcn:{path}?element=tmax")


def test_test_months_are_given_or_drawn(tmp_path):
    path = write(tmp_path, year_of("011111", 1999))
    given = sources.task(f"ushcn:{path}?year=1999&test=7,8")
    assert raw(given.test)[0][:, 0].tolist() == list(range(182, 244))
    drawn = {seed: raw(sources.task(f"ushcn:{path}?year=1999&seed={seed}").test)[0].tolist() for seed in range(6)}
    assert len({str(days) for days in drawn.values()}) > 1
    for days in drawn.values():
        months = {date.fromordinal(date(1998, 12, 31).toordinal() + int(day)).month for (day,) in days}
        assert len(months) == 2
    assert drawn[3] == raw(sources.task(f"ushcn:{path}?year=1999&seed=3").test)[0].tolist()


def test_season_adds_sine_and_cosine(tmp_path):
    path = write(tmp_path, year_of("011111", 1999))
    x, _ = raw(sources.task(f"ushcn:{path}?year=1999&inputs=season").train)
    assert x.shape == (304, 3)
    np.testing.assert_allclose(x[:, 1] ** 2 + x[:, 2] ** 2, 1, atol=1e-6)
    np.testing.assert_allclose(
        x[72, 1:], [math.sin(2 * math.pi * 73 / 365), math.cos(2 * math.pi * 73 / 365)], atol=1e-6
    )


def test_log_and_other_elements(tmp_path):
    cold = year_of("011111", 1999, element="TMIN", changed={1: (-12, "  0")})
    path = write(tmp_path, [*year_of("011111", 1999), *cold])
    task = sources.task(f"ushcn:{path}?year=1999&log")
    assert task.classes == ("log(1 + prcp / 0.01 inch)",)
    assert raw(task.train)[1][0] == pytest.approx(math.log1p(401))
    tmin = sources.task(f"ushcn:{path}?year=1999&element=tmin")
    assert (tmin.classes, raw(tmin.train)[1][0]) == (("tmin [°F]",), -12)
    with pytest.raises(OptionError, match="log is for amounts"):
        sources.task(f"ushcn:{path}?year=1999&element=tmin&log")
    with pytest.raises(DataError, match="no value of SNOW for 011111"):
        sources.task(f"ushcn:{path}?element=snow")


def test_limit_and_split_keep_working(tmp_path):
    path = write(tmp_path, year_of("011111", 1999))
    task = sources.task(f"ushcn:{path}?year=1999&limit=20&split=1")
    assert (len(task.train), len(task.test)) == (20, 61)
    assert raw(task.test)[0].min() < 305  # no longer the last two months


@pytest.mark.parametrize(
    ("number", "bad", "says"),
    [
        (3, "USHCN daily data", r"line 3: got 16 characters that begin with 'USHCN daily data', expected 264"),
        (
            5,
            line("011111", 1999, 5)[:200] + "x" + line("011111", 1999, 5)[201:],
            "line 5: got",
        ),
        (5, line("011111", 1999, 5)[:100], "line 5: got"),
        (2, line("011111", 1999, 2, changed={30: (5, "  0")}), "line 2: there is no day 30 in month 2 of year 1999"),
        (4, line("011111", 1999, 4).replace("199904", "199913"), "line 4: there is no day 1 in month 13 of year 1999"),
        (6, line("011111", 1999, 6, changed={9: (-5, "  0")}), "line 6: PRCP of -5 on 1999-06-09 is below zero"),
        (7, line("011111", 1999, 6), "line 7: 1999-06-01 occurs twice"),
        (1, line("011111", 1999, 1) + " ", "line 1: got 265 characters"),
        (1, line("011111", 1999, 1, element="RAIN"), "line 1: got 264 characters that begin with '011111199901RAIN'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, number, bad, says):
    lines = year_of("011111", 1999)
    lines[number - 1] = bad
    with pytest.raises(DataError, match=says) as told:
        sources.task(f"ushcn:{write(tmp_path, lines)}?year=1999")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("1999,1,2", "line 2: got '1999,1,2', expected year,month,day,value"),
        ("1999,1,2,wet", "line 2: got 'wet'"),
        ("1999,2,29,0", "line 2: there is no day 29 in month 2"),
        ("1999,1,1,0", "line 2: 1999-01-01 occurs twice"),
        ("1999,1,2,-3", "line 2: PRCP of -3 on 1999-01-02 is below zero"),
    ],
)
def test_a_bad_csv_line_is_named(tmp_path, bad, says):
    path = write(tmp_path, ["1999,1,1,5", bad], "rain.csv")
    with pytest.raises(DataError, match=says):
        sources.task(f"ushcn:{path}")


def test_lines_cut_of_their_last_blanks_are_read(tmp_path):
    whole = write(tmp_path, year_of("011111", 1999))
    cut = write(tmp_path, [text.rstrip() for text in year_of("011111", 1999)], "cut.txt")
    prints = {sources.task(f"ushcn:{path}").fingerprint() for path in (whole, cut)}
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("year=1890", r"no value in year=1890; 011111 has 1998-1999, 2001"),
        ("year=1890-1895", r"no value in year=1890-1895; 011111 has"),
        ("year=99", r"year must be like 1990 or 1950-1999, got '99'; 011111 has 1998-1999, 2001"),
        ("test=13", "months from 1 to 12"),
        ("test=0", "test must be a whole number of 1 or more"),
        ("test=1,2,3,4,5,6,7,8,9,10,11,12", "leave some for training"),
        ("test=1&seed=2", "which both set the months; give one"),
        ("inputs=hour", "inputs must be day or season"),
        ("element=wind", "element must be one of prcp, snow"),
        ("year=2001", "0 days are left for the test set"),
        ("sation=1", "did you mean station"),
    ],
)
def test_nonsense_is_refused(tmp_path, options, says):
    lines = [*year_of("011111", 1998), *year_of("011111", 1999), *year_of("011111", 2001)[:3]]
    path = write(tmp_path, lines)
    with pytest.raises(NearkinError, match=says):
        sources.task(f"ushcn:{path}?{options}")


def test_without_files_the_error_says_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"precipitation was not found in .*ushcn_daily.*state files.*NEARKIN_DATA"):
        sources.task("precipitation?station=livermore")
    (tmp_path / "ushcn_daily").mkdir()
    (tmp_path / "ushcn_daily" / "data_format.txt").write_text("COOP ID\n")
    with pytest.raises(DataError, match=r"has no state\*.txt, us.txt or \*.csv file"):
        sources.task("precipitation?station=livermore")
    with pytest.raises(DataError, match="there is no file or folder"):
        sources.task("ushcn:nowhere.txt")
    write(tmp_path / "ushcn_daily", year_of("011111", 1999))
    assert len(sources.task("precipitation").train) == 304


@pytest.fixture
def archive(real_folder):
    return real_folder("ushcn_daily")


@pytest.mark.realdata
def test_livermore_agrees_with_pandas(archive):
    frame = pd.read_csv(archive / "CA_044997_livermore_prcp.csv.gz", names=["year", "month", "day", "value"])
    found = ushcn.record(archive, "044997")
    with pytest.raises(OptionError, match="has no station '044998'; it has 044997"):
        ushcn.record(archive, "044998")
    assert (found.name, len(found.cells), found.flagged, found.missing) == ("LIVERMORE", 39285, 0, 527)
    assert sum(cell.value for cell in found.cells) == frame["value"].sum()
    means = frame.groupby(["month", "day"])["value"].mean().drop((2, 29)) / 100
    task = sources.task("precipitation?station=livermore")
    np.testing.assert_allclose(np.concatenate([raw(task.train)[1], raw(task.test)[1]]), means, rtol=1e-6)
    one = sources.task("precipitation?station=livermore&year=1990")
    assert (len(one.train), len(one.test)) == (304, 61)
    year = frame[frame["year"] == 1990]["value"] / 100
    np.testing.assert_allclose(np.concatenate([raw(one.train)[1], raw(one.test)[1]]), year, rtol=1e-6)


@pytest.mark.realdata
def test_rhode_island_agrees_with_a_reading_by_column(archive):
    raw_bytes = gzip.decompress((archive / "state37_RI.txt.gz").read_bytes())
    lines = np.frombuffer(raw_bytes, np.uint8).reshape(-1, 265)[:, :264]  # every line has its full width
    lines = lines[(lines[:, 12:16] == np.frombuffer(b"PRCP", np.uint8)).all(axis=1)]
    known = {"370896": (17295, 0, 14462), "374266": (39429, 0, 5129), "376698": (24470, 2, 0)}
    for station, (count, flagged, missing) in known.items():
        rows = lines[(lines[:, :6] == np.frombuffer(station.encode(), np.uint8)).all(axis=1)]
        days = np.ascontiguousarray(rows[:, 16:].reshape(-1, 8))
        values = np.ascontiguousarray(days[:, :5]).view("S5")[:, 0].astype(int)
        good = (values != -9999) & (days[:, 6] == ord(" "))
        found = ushcn.record(archive, station)
        assert (len(found.cells), found.flagged, found.missing) == (count, flagged, missing)
        assert int(good.sum()) == count
        assert sum(cell.value for cell in found.cells) == values[good].sum()
        assert max(cell.value for cell in found.cells) == values[good].max() <= 671


@pytest.mark.realdata
def test_the_seasons_explain_livermore_and_temperature_but_hardly_rhode_island(archive):
    def explained(text):
        x, y = raw(sources.task(text).train)
        angle = 2 * np.pi * x / 365
        waves = np.concatenate([np.ones_like(angle), np.sin(angle), np.cos(angle)], axis=1)
        return 1 - np.linalg.lstsq(waves, y, rcond=None)[1][0] / np.sum((y - y.mean()) ** 2)

    assert explained("precipitation?station=livermore") > 0.8
    assert explained(f"ushcn:{archive}/state37_RI.txt.gz?station=kingston&element=tmax&year=1990") > 0.7
    assert explained("precipitation?station=providence") < 0.2
