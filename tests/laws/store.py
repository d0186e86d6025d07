"""What every store of solved tasks must hold to, whatever database it stands on.

A test class inherits `StoreLaws` and gives two fixtures: `store`, an empty store, and `other`, a second connection to
the same one. Only the public interface is used.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.core.errors import NearkinError, OptionError, ZooError
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine
from nearkin.store.records import NewArtifact, NewTask, PendingArtifact

INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]  # several classes have this law


def new_task(name: str = "even", **changes: Any) -> NewTask:
    fields: dict[str, Any] = {
        "name": name,
        "network": "mlp?width=32",
        "likelihood": "categorical",
        "data": "digits?parity",
        "num_classes": 2,
        "input_shape": (1, 8, 8),
        "metric": 0.1 + 0.2,
        "epsilon": 1e-300,
        "trials": 3,
        "parameters": 11_000_000_000,
        "seconds": 12.5,
        "seed": 2**63 - 1,
        "fingerprint": "f00d" * 4,
        "facts": {"classes": ["odd", "even"], "ε": [0.5, None, True]},
        "created": "2026-01-02T03:04:05+00:00",
    }
    return NewTask(**{**fields, **changes})


def weights(text: str = "w", trials: int = 2) -> list[NewArtifact]:
    return [NewArtifact("weights", i, f"{text} {i}".encode() * 100, {"metric": 0.5 + i}) for i in range(trials)]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Then(list[NewArtifact]):
    """Artifacts; once all of them were read, and before their rows are written, an action is run."""

    def __init__(self, artifacts: Iterable[NewArtifact], action: Callable[[], object]) -> None:
        super().__init__(artifacts)
        self.action = action

    def __iter__(self) -> Iterator[NewArtifact]:
        yield from super().__iter__()
        self.action()


def interrupt() -> None:
    raise KeyboardInterrupt


class StoreLaws:
    def test_what_is_added_is_found_unchanged(self, store: Catalogue) -> None:
        task, files = new_task(), weights()
        record = store.add(task, files)
        assert record == store.task("even") == store.tasks()[0]
        told = {key: getattr(record, key) for key in NewTask.__dataclass_fields__}
        assert told == {key: getattr(task, key) for key in NewTask.__dataclass_fields__}
        kept = store.artifacts("even")
        assert [(item.task, item.kind, item.trial, item.facts) for item in kept] == [
            ("even", "weights", 0, {"metric": 0.5}),
            ("even", "weights", 1, {"metric": 1.5}),
        ]
        assert [store.blob(item) for item in kept] == [file.data for file in files]
        assert [item.size for item in kept] == [len(file.data) for file in files]

    def test_tasks_are_listed_in_the_order_they_came(self, store: Catalogue) -> None:
        for name in ("b", "a", "c"):
            store.add(new_task(name))
        assert [record.name for record in store.tasks()] == ["b", "a", "c"]

    def test_lists_can_be_read_in_pages(self, store: Catalogue) -> None:
        names = [f"t{i}" for i in range(7)]
        store.admit([(new_task(name), []) for name in names], lambda _: b"")
        store.remove("t2")
        names.remove("t2")
        read, after = [], None
        while page := store.tasks(limit=2, after=after):
            assert len(page) <= 2
            read += [record.name for record in page]
            after = page[-1].id
        assert read == names == store.names()
        assert store.count() == 6
        assert store.has("t3")
        assert not any(store.has(name) for name in ("t2", "", "a/b", "t\x003", "\ud800", "T3"))

    def test_artifacts_are_listed_by_task_and_kind(self, store: Catalogue) -> None:
        store.add(new_task("a"), [*weights(), NewArtifact("fisher", 0, b"f")])
        store.add(new_task("b"), weights("other", 1))
        assert [(item.task, item.kind) for item in store.artifacts()] == [
            ("a", "fisher"),
            ("a", "weights"),
            ("a", "weights"),
            ("b", "weights"),
        ]
        assert [item.task for item in store.artifacts(kind="weights")] == ["a", "a", "b"]
        assert [item.trial for item in store.artifacts("a", "weights")] == [0, 1]
        assert store.artifacts("a", "nothing") == []

    def test_a_name_is_given_once(self, store: Catalogue) -> None:
        assert store.claimable("even") == "even"
        store.add(new_task(), weights("first"))
        with pytest.raises(ZooError, match="already has a task named 'even'; choose another name, or nearkin remove"):
            store.claimable("even")
        with pytest.raises(ZooError, match="already has a task named 'even'"):
            store.add(new_task(), weights("second"))
        assert [store.blob(item) for item in store.artifacts("even")] == [file.data for file in weights("first")]
        assert sorted(store.blobs.digests()) == sorted(digest(file.data) for file in weights("first"))

    def test_a_name_taken_while_the_files_were_written_is_refused(self, store: Catalogue, other: Catalogue) -> None:
        late = Then(weights("second"), lambda: other.add(new_task(), weights("first")))
        with pytest.raises(ZooError, match="already has a task named 'even'"):
            store.add(new_task(), late)
        assert sorted(store.blobs.digests()) == sorted(digest(file.data) for file in weights("first"))

    @pytest.mark.parametrize(
        "name",
        ["", " ", "a/b", "a\\b", "-a", "a\n", "a\tb", "\x1b[31m", "..", ".", "x" * 101, " a", "a ", "\ud800", "a\x00"],
    )
    def test_names_that_cannot_be(self, store: Catalogue, name: str) -> None:
        for attempt in (new_task, store.claimable, store.task, store.remove):
            with pytest.raises(ZooError, match="cannot name a task") as refused:
                attempt(name)
            assert "\n" not in str(refused.value)

    @settings(max_examples=15, deadline=None, suppress_health_check=INHERITED)
    @given(name=st.text(min_size=1, max_size=100))
    def test_any_name_that_can_be_comes_back(self, store: Catalogue, name: str) -> None:
        try:
            task = new_task(name)
        except ZooError:
            return
        store.add(task)
        assert store.task(name).name == name
        store.remove(name)

    def test_an_unknown_name_is_told_its_neighbours(self, store: Catalogue) -> None:
        store.add(new_task("even digits"))
        for attempt in (store.task, store.artifacts, store.remove, lambda name: store.attach(name, weights())):
            with pytest.raises(
                ZooError, match=r"no task named 'evn digits'; did you mean 'even digits'\? nearkin list"
            ):
                attempt("evn digits")
        with pytest.raises(ZooError, match="no task named 'qq'; nearkin list shows all"):
            store.task("qq")

    def test_removal_takes_the_files_that_nobody_else_needs(self, store: Catalogue) -> None:
        shared = NewArtifact("data", 0, b"shared")
        store.add(new_task("a"), [*weights("a"), shared])
        store.add(new_task("b"), [*weights("b"), shared])
        store.remove("a")
        assert [record.name for record in store.tasks()] == ["b"]
        assert sorted(store.blobs.digests()) == sorted(digest(f.data) for f in [*weights("b"), shared])
        store.remove("b")
        assert store.tasks() == []
        assert list(store.blobs.digests()) == []
        store.add(new_task("a"), weights("a"))
        assert examine(store).sound

    def test_attached_files_come_beside_or_instead(self, store: Catalogue) -> None:
        store.add(new_task(), weights())
        before = store.artifacts("even")
        after = store.attach("even", [NewArtifact("weights", 1, b"new", {"n": 1}), NewArtifact("fisher", 0, b"f")])
        assert [(item.kind, item.trial) for item in after] == [("fisher", 0), ("weights", 0), ("weights", 1)]
        assert store.blob(after[2]) == b"new"
        assert after[2].facts == {"n": 1}
        assert not store.blobs.has(before[1].digest)
        assert store.attach("even", [NewArtifact("fisher", 0, b"f")])[0].digest == after[0].digest
        assert store.blob(store.artifacts("even", "fisher")[0]) == b"f"
        assert examine(store).sound

    @pytest.mark.parametrize("action", ["add", "attach"])
    def test_a_failure_between_files_and_rows_leaves_the_zoo_as_it_was(self, store: Catalogue, action: str) -> None:
        store.add(new_task("old"), weights("old"))
        before = store.tasks(), store.artifacts()
        broken = [*weights("new"), NewArtifact("odd", 0, b"odd", {"odd": object()})]  # refused when its row is written
        for artifacts, error in ((Then(weights("new"), interrupt), KeyboardInterrupt), (broken, ZooError)):
            with pytest.raises(error):
                store.add(new_task("new"), artifacts) if action == "add" else store.attach("old", artifacts)
        assert (store.tasks(), store.artifacts()) == before
        assert examine(store).orphans == ()
        assert examine(store).sound

    def test_tasks_are_admitted_all_or_none(self, store: Catalogue) -> None:
        store.add(new_task("b"))
        with pytest.raises(ZooError, match="already has a task named 'b'"):
            store.admit([(new_task("a"), []), (new_task("b"), [])], lambda _: b"")
        assert [record.name for record in store.tasks()] == ["b"]

    def test_two_files_of_one_kind_and_trial_are_refused(self, store: Catalogue) -> None:
        with pytest.raises(NearkinError):
            store.add(new_task(), [NewArtifact("weights", 0, b"a"), NewArtifact("weights", 0, b"b")])
        assert store.tasks() == []
        assert list(store.blobs.digests()) == []

    def test_a_blob_that_went_before_the_commit_is_written_again(self, store: Catalogue, other: Catalogue) -> None:
        store.add(new_task(), Then(weights(), lambda: other.discard(list(other.blobs.digests()))))
        assert [store.blob(item) for item in store.artifacts("even")] == [file.data for file in weights()]

    def test_discarding_spares_what_a_task_names(self, store: Catalogue) -> None:
        store.add(new_task(), weights())
        orphan = store.blobs.put(b"nobody's")
        assert store.discard(list(store.blobs.digests())) == [orphan]
        assert examine(store).sound

    def test_more_tasks_than_one_statement_takes(self, store: Catalogue) -> None:
        store.admit([(new_task(f"t{i}"), []) for i in range(1200)], lambda _: b"")
        assert [record.name for record in store.tasks()] == [f"t{i}" for i in range(1200)]

    def test_no_facts_but_plain_ones(self, store: Catalogue) -> None:
        with pytest.raises(ZooError, match="the facts of 'even' are not plain JSON values"):
            new_task(facts={"odd": object()})
        with pytest.raises(ZooError, match="the facts of 'even' are not plain JSON values"):
            new_task(facts={"odd": float("nan")})
        with pytest.raises(ZooError, match="the facts of weights"):
            store.add(new_task(), [NewArtifact("weights", 0, b"", {"odd": object()})])
        assert store.tasks() == []
        assert list(store.blobs.digests()) == []

    @pytest.mark.parametrize(("key", "value"), [("metric", float("nan")), ("seconds", float("inf")), ("seed", 2**63)])
    def test_no_numbers_that_cannot_be_kept(self, store: Catalogue, key: str, value: float) -> None:
        with pytest.raises(OptionError, match=f"{key} of 'even' is"):
            new_task(**{key: value})

    @pytest.mark.parametrize("key", ["network", "data", "created"])
    def test_no_text_that_cannot_be_kept_or_shown(self, store: Catalogue, key: str) -> None:
        for text in ("npz:\udcff.npz", "\x1b[2J", "two\nlines"):
            with pytest.raises(ZooError, match=f"the {key} of 'even' is"):
                new_task(**{key: text})

    def test_a_failure_while_rows_are_written_takes_them_back(self, store: Catalogue) -> None:
        missing = PendingArtifact("weights", 0, digest(b"nowhere"), 7, {})
        with pytest.raises(KeyboardInterrupt):
            store.admit([(new_task("a"), []), (new_task("b"), [missing])], lambda _: interrupt() or b"")
        assert store.tasks() == []

    def test_pairs_are_kept_replaced_and_forgotten(self, store: Catalogue, other: Catalogue) -> None:
        for name in ("a", "b"):
            store.add(new_task(name))
        store.keep_pair("m", "a", "b", 0, {"value": 0.1})
        store.keep_pair("m", "a", "b", 0, {"value": 0.2})
        store.keep_pair("m", "a", "b", 1, {"value": 0.3})
        assert other.pairs("m", "b") == {("a", 0): {"value": 0.2}, ("a", 1): {"value": 0.3}}
        assert store.pairs("m", "a") == {} == store.pairs("n", "b")
        store.remove("a")
        assert other.pairs("m", "b") == {}

    def test_a_second_connection_sees_the_same_zoo(self, store: Catalogue, other: Catalogue) -> None:
        store.add(new_task(), weights())
        assert other.tasks() == store.tasks()
        other.remove("even")
        assert store.tasks() == []
