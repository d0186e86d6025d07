"""Derived tasks, and the data strings that name them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.errors import NearkinError, OptionError
from nearkin.tasks import derive
from nearkin.tasks.datastring import DataString
from nearkin.tasks.sources import MODIFIERS, task
from nearkin.tasks.split import stratified_index
from nearkin.tasks.task import Task


@pytest.fixture(scope="module")
def digits() -> Task:
    return task("digits")


def test_detect_asks_one_question(digits: Task) -> None:
    found = task("digits?detect=0,6")
    assert found.classes == ("other", "0+6")
    labels = digits.test.labels()
    assert torch.equal(found.test.labels(), ((labels == 0) | (labels == 6)).long())
    assert torch.equal(found.test.all().x, digits.test.all().x), "tasks of one data set see the same pixels"


def test_classes_and_the_rest(digits: Task) -> None:
    labels = digits.train.labels()
    other = task("digits?classes=3,1&rest=other")
    assert other.classes == ("3", "1", "other")
    assert torch.equal(other.train.labels(), torch.where(labels == 3, 0, torch.where(labels == 1, 1, 2)))
    drop = task("digits?classes=3,1")
    assert drop.classes == ("3", "1")
    keep = (labels == 3) | (labels == 1)
    assert torch.equal(drop.train.all().x, digits.train.all().x[keep])
    assert torch.equal(drop.train.labels(), (labels[keep] == 1).long())
    everything = task("digits?classes=0,1,2,3,4,5,6,7,8,9&rest=other")
    assert len(everything.classes) == 10


def test_parity_and_merge(digits: Task) -> None:
    assert torch.equal(task("digits?parity").test.labels(), digits.test.labels() % 2)
    merged = task("digits?merge=0+1,8+9")
    assert merged.classes == ("0+1", "8+9", "2", "3", "4", "5", "6", "7")
    labels = digits.test.labels()
    assert torch.equal(merged.test.labels() == 1, labels >= 8)
    assert torch.equal(merged.test.labels() == 4, labels == 4)


def test_corrupt_replaces_that_share_of_training_labels_and_is_nested(digits: Task) -> None:
    clean = digits.train.labels()
    some, more = task("digits?corrupt=0.4"), task("digits?corrupt=0.8")
    changed = some.train.labels() != clean
    assert 0.3 < changed.double().mean() < 0.4, "a tenth of the random labels are right by chance"
    assert torch.equal(some.train.labels()[changed], more.train.labels()[changed])
    assert torch.equal(some.test.labels(), digits.test.labels())
    assert torch.equal(task("digits?corrupt=0").train.labels(), clean)


def test_limit_keeps_the_class_shares_and_is_deterministic() -> None:
    few = task("digits?limit=100")
    assert torch.bincount(few.train.labels()).tolist() == [10] * 10
    assert torch.equal(few.train.all().x, task("digits?limit=100").train.all().x)
    assert len(few.test) == len(task("digits").test)
    assert torch.bincount(task("digits?detect=0&limit=100").train.labels()).tolist() == [90, 10]
    assert torch.bincount(task("digits?detect=0&limit=100&even").train.labels()).tolist() == [50, 50]
    assert torch.bincount(task("digits?detect=0&limit=100&balance").train.labels()).tolist() == [50, 50]
    assert len(task("digits?limit=99999").train) == len(task("digits").train)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((60, 40), 10, [6, 4]),
        ((600, 390, 10), 20, [12, 7, 1]),  # the rarest keeps one sample
        ((97, 1, 1, 1), 4, [1, 1, 1, 1]),
        ((5, 3, 3), 9, [4, 3, 2]),  # quotas 4.09, 2.45, 2.45: the first of equal remainders
    ],
)
def test_stratified_draw_rounds_shares_by_largest_remainder(
    sizes: tuple[int, ...], count: int, expected: list[int]
) -> None:
    labels = torch.cat([torch.full((size,), group) for group, size in enumerate(sizes)])
    index = stratified_index(labels, count, seed=3)
    assert torch.bincount(labels[index]).tolist() == expected
    assert torch.equal(index, index.unique()), "no sample twice, in rising order"


def test_majority_baseline_of_an_imbalanced_task_is_the_same_under_a_limit() -> None:
    labels = torch.arange(1000).remainder(10).clamp(max=4)  # 60 % of class 4, 10 % of each other
    whole = Task.from_arrays("skewed", torch.randn(1000, 3), labels, torch.randn(200, 3), labels[:200])
    few = derive.limited(whole, 50)
    assert few.majority_baseline() == whole.majority_baseline() == whole.best_constant() == 0.6
    assert torch.bincount(few.train.labels()).tolist() == [5, 5, 5, 5, 30]
    even = derive.limited(whole, 50, even=True)
    assert even.majority_baseline() == 0.1, "the training labels tell no majority"
    assert even.best_constant() == 0.6


def test_balance_evens_both_parts() -> None:
    even = task("digits?detect=0&balance")
    for part in (even.train, even.test):
        counts = torch.bincount(part.labels())
        assert counts[0] == counts[1] > 30


def test_split_moves_samples_but_loses_none(digits: Task) -> None:
    again = task("digits?split=3")
    assert (len(again.train), len(again.test)) == pytest.approx((len(digits.train), len(digits.test)), abs=10)
    both = torch.cat([again.train.labels(), again.test.labels()])
    assert torch.equal(torch.bincount(both), torch.bincount(torch.cat([digits.train.labels(), digits.test.labels()])))
    assert not torch.equal(again.test.labels(), task("digits?split=4").test.labels())
    assert torch.equal(again.test.all().x, task("digits?split=3").test.all().x)


def test_pixels_change_as_named() -> None:
    assert task("digits?size=4").input_shape == (1, 4, 4)
    plain, inverted = task("digits"), task("digits?invert")
    raw = plain.test.scaling.inverse(plain.test.all().x)
    assert torch.allclose(inverted.test.scaling.inverse(inverted.test.all().x), 1 - raw, atol=1e-5)
    assert task("digits?dense=edges").likelihood == "dense"
    assert task("digits?grey").input_shape == (1, 8, 8)


def test_the_order_of_writing_does_not_matter() -> None:
    one, two = task("digits?limit=200&detect=0&size=6"), task("digits?size=6&detect=0&limit=200")
    assert one.source == two.source == "digits?detect=0&limit=200&size=6"
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digts", "did you mean digits"),
        ("nothing:x", "unknown data source 'nothing'.*npz:PATH"),
        ("digits?detect=12", "no class '12'; .*are 0, 1, 2"),
        ("digits?detect=", "detect got no value, expected names"),
        ("digits?detect=0,0", "named twice"),
        ("digits?detect=0,1,2,3,4,5,6,7,8,9", "so none are left"),
        ("digits?rest=other", "rest needs classes"),
        ("digits?classes=0,1&rest=maybe", "rest must be other or drop"),
        ("digits?limit=5", "leaves some of the 10 classes"),
        ("digits?limit=many", "limit must be a whole number"),
        ("digits?corrupt=1.5", "corrupt must be a number from 0 to 1"),
        ("digits?size=big", "size must be a side"),
        ("digits?grey=maybe", "grey takes no value"),
        ("digits?limt=5", "did you mean limit"),
        ("digits?limit=5&limit=6", "given twice"),
        ("digits?merge=0+1,1+2", "two groups"),
        ("digits?dense=magic", "autoencode"),
        ("digits?classes=3", "needs two or more"),
        ("digits:here", "takes no location"),
        ("npz:", "got no location"),
        ("", "begins with its source"),
    ],
)
def test_bad_strings_get_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        task(text)
    assert "\n" not in str(caught.value)


def test_absent_official_files_say_where_to_put_them(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path))
    with pytest.raises(NearkinError, match=r"cifar10 was not found in .*cifar-10-batches-py.*NEARKIN_DATA"):
        task("cifar10")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
def test_data_strings_print_and_parse_without_loss(location: str, options: dict[str, str]) -> None:
    pairs = tuple(sorted((name, value) for name, value in options.items()))
    text = DataString("csv", location, pairs)
    assert DataString.parse(str(text)) == text


def test_every_promised_modifier_is_there() -> None:
    choice = {"detect", "classes", "parity", "merge", "limit", "balance", "split", "part", "corrupt"}
    assert choice | {"invert", "size", "grey", "rgb", "dense"} == set(MODIFIERS)


def test_parts_are_disjoint_cover_the_training_set_and_keep_class_shares() -> None:
    whole = task("digits")
    pieces = [task(f"digits?part={number}/3") for number in (1, 2, 3)]
    rows = [set(map(bytes, piece.train.all().x.numpy())) for piece in pieces]
    assert sum(map(len, rows)) == len(set.union(*rows)) == len(whole.train)
    counts = torch.stack([torch.bincount(piece.train.labels()) for piece in pieces])
    assert int((counts.amax(0) - counts.amin(0)).max()) <= 1
    assert all(torch.equal(piece.test.labels(), whole.test.labels()) for piece in pieces)


@pytest.mark.parametrize("value", ["0/2", "3/2", "1/1", "2", "a/b", "1/2/3", ""])
def test_parts_that_do_not_exist_are_refused(value: str) -> None:
    with pytest.raises(OptionError, match="part"):
        task(f"digits?part={value}")
