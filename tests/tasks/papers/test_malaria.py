import gzip
import math

import numpy as np
import pandas as pd
import pytest
import torch

from nearkin.core.errors import DataError, NearkinError, OptionError
from nearkin.tasks import sources
from nearkin.tasks.papers.malaria import malaria_noise, variance
from nearkin.tasks.task import Task

KENYA = "Cluster,Long,Lat,RDT,Age,Survey,elevation\n"
GAMBIA = "x,y,pos,age,green\n"


def write(folder, text, name="people.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def people(clusters=10, size=6):
    """Clusters of people in two surveys: cluster c has c sick of `size` at school and none in the community."""
    rows = []
    for cluster in range(clusters):
        for person in range(size):
            place = f"{34 + cluster / 10 + person / 1000:.4f},{-0.5 - cluster / 50:.4f}"
            rows.append(f"{cluster},{place},{int(person < cluster)},{person},school,{1400 + person}")
            rows.append(f"{cluster},{place},0,{person},community,{1400 + person}")
    return KENYA + "\n".join(rows) + "\n"


def points(count=12):
    rows = [f"{3 + i / 10},{6 + i / 7},{2012 + i % 2},{20 + i},{i}" for i in range(count)]
    return "longitude,latitude,year_start,examined,positive\n" + "\n".join(rows) + "\n"


def grid(count=20):
    cells = [
        (2.5 + i / 5, 5 + i / 9, year, 0.1 + i / 100, 0.01 + i / 1000) for year in (2012, 2016) for i in range(count)
    ]
    rows = [f"{x},{y},{year},{mean},{std},{i % 2 == 0}" for i, (x, y, year, mean, std) in enumerate(cells)]
    return "longitude,latitude,year,mean,std_dev,is_ng\n" + "\n".join(rows) + "\n"


def raw(task):
    """Inputs, targets and variances of both parts in the units of the data, sorted by the first input."""
    parts = (task.train, task.test)
    x = torch.cat([part.inputs.take(torch.arange(len(part))) for part in parts]).numpy()
    y = torch.cat([part.labels() for part in parts])[:, 0].numpy()
    v = torch.cat([variance(part.targets) for part in parts])[:, 0].numpy()
    order = np.argsort(x[:, 0])
    return x[order], y[order], v[order]


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz"])
def test_people_are_counted_by_cluster(tmp_path, name):
    task = sources.task(f"malaria:{write(tmp_path, people(), name)}?survey=school")
    assert (task.likelihood, task.classes, task.input_shape) == ("gaussian", ("prevalence (share)",), (2,))
    assert (len(task.train), len(task.test)) == (8, 2)
    x, y, v = raw(task)
    sick = np.minimum(np.arange(10), 6)
    np.testing.assert_allclose(x[:, 0], 34 + np.arange(10) / 10 + 0.0025, rtol=1e-6)
    np.testing.assert_allclose(y, sick / 6, rtol=1e-6)
    np.testing.assert_allclose(v, (sick + 0.5) * (6 - sick + 0.5) / 49 / 6, rtol=1e-5)


def test_without_a_survey_both_are_pooled(tmp_path):
    _, y, v = raw(sources.task(f"malaria:{write(tmp_path, people())}"))
    sick = np.minimum(np.arange(10), 6)
    np.testing.assert_allclose(y, sick / 12, rtol=1e-6)
    np.testing.assert_allclose(v, (sick + 0.5) * (12 - sick + 0.5) / 169 / 12, rtol=1e-5)


def test_places_are_finer_than_clusters_and_all_there_is_without_them(tmp_path):
    assert len(raw(sources.task(f"malaria:{write(tmp_path, people())}?by=place"))[0]) == 60
    rows = [f"{1000 * (i % 5)},{7},{int(i < 8)},{i},{40 + i % 5}" for i in range(20)]
    path = write(tmp_path, GAMBIA + "\n".join(rows), "villages.csv")
    x, y, _ = raw(sources.task(f"malaria:{path}?covariates=green,AGE"))
    np.testing.assert_allclose(x[:, 0], 1000 * np.arange(5))
    np.testing.assert_allclose(x[:, 2], 40 + np.arange(5))
    np.testing.assert_allclose(x[:, 3], np.arange(5) + 7.5)
    np.testing.assert_allclose(y, [0.5, 0.5, 0.5, 0.25, 0.25])
    with pytest.raises(OptionError, match="has no column cluster; use by=place"):
        sources.task(f"malaria:{path}?by=cluster")


def test_the_variance_is_about_that_of_a_binomial_share():
    from nearkin.tasks.papers.malaria import _share

    rng = np.random.default_rng(0)
    for rate in (0.2, 0.5):
        found = rng.binomial(60, rate, size=20_000).astype(float)
        for kind in ("share", "logit"):
            value, noise = _share(np.full_like(found, 60), found, kind)
            assert noise.mean() == pytest.approx(value.var(), rel=0.06)


def test_points_with_numbers_examined(tmp_path):
    path = write(tmp_path, points())
    _, y, v = raw(sources.task(f"malaria:{path}"))
    n, k = 20 + np.arange(12), np.arange(12)
    np.testing.assert_allclose(y, k / n, rtol=1e-6)
    np.testing.assert_allclose(v, (k + 0.5) * (n - k + 0.5) / (n + 1) ** 2 / n, rtol=1e-5)
    _, y, v = raw(sources.task(f"malaria:{path}?target=logit&year=2013"))
    n, k = n[1::2], k[1::2]
    np.testing.assert_allclose(y, np.log((k + 0.5) / (n - k + 0.5)), rtol=1e-5)
    np.testing.assert_allclose(v, 1 / (k + 0.5) + 1 / (n - k + 0.5), rtol=1e-5)


def test_the_map_of_the_paper_as_csv(tmp_path):
    path = write(tmp_path, grid())
    x, y, v = raw(sources.task(f"malaria:{path}?year=2016"))
    assert x.shape == (20, 2)
    np.testing.assert_allclose(y, 0.1 + np.arange(20) / 100, rtol=1e-5)
    np.testing.assert_allclose(v, (0.01 + np.arange(20) / 1000) ** 2, rtol=1e-5)
    assert len(raw(sources.task(f"malaria:{path}?year=2016&inside"))[0]) == 10
    _, logit, spread = raw(sources.task(f"malaria:{path}?year=2012&target=logit"))
    np.testing.assert_allclose(logit, np.log(y / (1 - y)), rtol=1e-5)
    step = 1e-4  # the variance follows the slope of the logit
    slope = (np.log((y + step) / (1 - y - step)) - np.log((y - step) / (1 - y + step))) / (2 * step)
    np.testing.assert_allclose(spread, v * slope**2, rtol=1e-3)
    bare = write(tmp_path, "lon,lat,mean\n" + "\n".join(f"{i},{i},{i / 9}" for i in range(9)), "bare.csv")
    assert raw(sources.task(f"malaria:{bare}"))[2].tolist() == [0] * 9


def test_hdf5_is_refused_because_its_readers_unpickle(tmp_path):
    hdf = tmp_path / "malaria_df.hdf5"
    hdf.write_bytes(b"\x89HDF")
    with pytest.raises(DataError, match=r"can run code.*to_csv\('malaria_df.csv'\)"):
        sources.task(f"malaria:{hdf}")


@pytest.mark.parametrize("modifiers", ["", "&limit=5", "&split=3", "&limit=7&split=3"])
def test_the_noise_follows_its_targets_through_modifiers(tmp_path, modifiers):
    task = sources.task(f"malaria:{write(tmp_path, points(40))}?target=share{modifiers}")
    std = float(task.train.target_scaling.std)
    for part, noise in zip((task.train, task.test), malaria_noise(task), strict=True):
        assert noise.shape == (len(part),)
        x = part.inputs.take(torch.arange(len(part)))[:, 0].double().numpy()
        k = np.rint((x - 3) * 10)
        n = 20 + k
        np.testing.assert_allclose(part.labels()[:, 0].numpy(), k / n, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(noise, (k + 0.5) * (n - k + 0.5) / (n + 1) ** 2 / n / std**2, rtol=1e-4)


def test_other_tasks_have_no_noise():
    task = Task.from_arrays("plain", torch.randn(10, 2), torch.randn(10))
    with pytest.raises(DataError, match="have no variance"):
        malaria_noise(task)


def test_targets_with_their_noise_are_like_any_others(tmp_path):
    task = sources.task(f"malaria:{write(tmp_path, points())}")
    batch = task.train.all()
    assert abs(float(batch.y.mean())) < 1e-5
    assert float(batch.y.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert torch.equal(task.train.ready().all().y, batch.y)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (points(), "target=rate", "target must be share or logit, got 'rate'"),
        (points(), "year=2020", "has no year=2020; it has 2012, 2013"),
        (points(), "year=late", "year must be a whole number"),
        (points(), "survey=school", "has no column survey"),
        (points(), "inside", "has no column is_ng"),
        (points(), "covariates=elevation", "has no column elevation; its columns are longitude, latitude"),
        (points(), "covariates=latitude", "names a column twice, or a coordinate"),
        (people(), "covariates=Survey", "column Survey is text"),
        (people(), "by=village", "by must be cluster or place, got 'village'"),
        (people(), "survey=market", "has no survey=market; it has community, school"),
        (people().replace(",1,", ",2,"), "", "RDT must be 0 or 1"),
        (points().replace("20,0", "20,30"), "", "positive must be between 0 and examined"),
        (points().replace("20,0", "20,"), "", "1 of 12 cells of positive are missing"),
        (grid().replace("0.1,", "0.0,"), "target=logit", "a logit needs means between 0 and 1, got 0 to"),
        (
            "Name_0,Year,PfPR_rmean\nAngola,2000,0.28\nBenin,2000,0.3\n",
            "",
            r"has no column longitude.*csv:FILE\?target",
        ),
        ("longitude,latitude\n1,2\n3,4\n", "", "has no column mean"),
    ],
)
def test_nonsense_is_refused(tmp_path, text, options, says):
    path = write(tmp_path, text, "file.csv")
    with pytest.raises(NearkinError, match=says) as told:
        sources.task(f"malaria:{path}" + (f"?{options}" if options else ""))
    assert "\n" not in str(told.value)


def test_without_files_the_error_says_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"malaria was not found in .*malaria_prevalence.*RiskMap.*geoR.*NEARKIN_DATA"):
        sources.task("malaria?place=kenya")
    with pytest.raises(DataError, match=r"there is no file .*nowhere.csv; name the map"):
        sources.task("malaria:nowhere.csv")
    folder = tmp_path / "malaria_prevalence"
    folder.mkdir()
    write(folder, people(), "kenya_highlands_rdt.csv.gz")
    assert len(sources.task("malaria?place=kenya").train) == 8
    with pytest.raises(DataError, match=r"has no gambia\.csv, plain or \.gz"):
        sources.task("malaria?place=gambia")
    for text in ("malaria", "malaria?place=nigeria"):
        with pytest.raises(OptionError, match=r"write \?place=kenya or \?place=gambia, or malaria:FILE"):
            sources.task(text)
    with pytest.raises(OptionError, match="unknown modifier 'place' for malaria"):
        sources.task("malaria:file.csv?place=kenya")


@pytest.fixture
def surveys(real_folder):
    return real_folder("malaria_prevalence")


@pytest.mark.realdata
def test_kenya_agrees_with_pandas(surveys):
    frame = pd.read_csv(surveys / "kenya_highlands_rdt.csv.gz")
    for survey in ("school", "community"):
        task = sources.task(f"malaria?place=kenya&survey={survey}&covariates=elevation")
        groups = frame[frame["Survey"] == survey].groupby("Cluster")
        known = groups.agg(x=("Long", "mean"), share=("RDT", "mean"), up=("elevation", "mean")).sort_values("x")
        x, y, _ = raw(task)
        assert (len(task.train), len(task.test)) == (37, 9)
        np.testing.assert_allclose(x[:, [0, 2]], known[["x", "up"]], rtol=1e-6)
        np.testing.assert_allclose(y, known["share"], rtol=1e-5, atol=1e-7)
    places = sources.task("malaria?place=kenya&by=place")
    assert (len(places.train), len(places.test)) == (3894, 974)


@pytest.mark.realdata
def test_gambia_agrees_with_pandas(surveys):
    frame = pd.read_csv(surveys / "gambia.csv.gz")
    known = frame.groupby(["x", "y"]).agg(n=("pos", "size"), k=("pos", "sum")).reset_index().sort_values("x")
    task = sources.task("malaria?place=gambia")
    assert (len(task.train), len(task.test)) == (52, 13)
    x, y, v = raw(task)
    np.testing.assert_allclose(x[:, 0], known["x"], rtol=1e-6)
    np.testing.assert_allclose(y, known["k"] / known["n"], rtol=1e-5, atol=1e-7)
    assert (y.min(), y.max()) == (0, pytest.approx(14 / 15))
    assert math.sqrt(v.mean()) < y.std()  # villages differ by more than chance
    with pytest.raises(DataError, match="has no column longitude"):
        sources.task(f"malaria:{surveys / 'map_pfpr_by_country_2000-2019.csv.gz'}")
