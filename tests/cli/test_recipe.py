"""The options of a recipe: every field, the same on every command that trains."""

from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import nearkin as nk
from calling import Call
from nearkin.cli.recipe import FLAGS
from nearkin.zoo.zoo import Zoo

DATA = "digits?limit=60"
ALL = {
    "steps": 3, "seconds": 60.0, "batch_size": 7, "optimiser": "sgd", "learning_rate": 0.01, "momentum": 0.5,
    "weight_decay": 0.001, "schedule": "step", "milestones": [0.25, 0.5], "decay": 0.3, "warmup": 0.2, "clip": 1.5,
    "smoothing": 0.1,
    "averaging": 0.5, "target": 0.9, "patience": 2, "validation": 0.3, "precision": "float32", "augment": "crop=1",
    "epochs": 2, "frozen_statistics": True,
}  # fmt: skip


def words(values: dict[str, object]) -> list[str]:
    def text(value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in values.items()]
    return [word for flag, value in pairs for word in ([flag] if value is True else [flag, text(value)])]


def test_there_is_one_option_for_every_field() -> None:
    assert [flag.name for flag in FLAGS] == [field.name for field in fields(nk.Recipe)]
    hints = get_type_hints(nk.Recipe)
    for flag in FLAGS:
        if flag.name != "milestones":  # text on the command line
            assert flag.kind in (get_args(hints[flag.name]) or (hints[flag.name],)), flag.name


def test_help_names_the_true_defaults() -> None:
    plain = nk.Recipe()
    for flag in FLAGS:
        if "(default: " in flag.help and flag.name not in ("epochs", "seconds"):  # epochs depend on the data
            shown = flag.help.partition("(default: ")[2].partition(")")[0]
            default = getattr(plain, flag.name)
            text = ",".join(map(str, default)) if isinstance(default, tuple) else f"{default:g}" if isinstance(
                default, int | float) else default  # fmt: skip
            assert shown == text, flag.name


def test_every_option_reaches_the_training_of_add(call: Call) -> None:
    said = call("add", "ten", DATA, "--network", "mlp?hidden=4", "--trials", "1", *words(ALL))
    assert said.code == 0, said.err
    with Zoo("nearkin-zoo") as zoo:
        assert zoo.record("ten").facts["recipe"] == ALL


def test_other_spellings_are_taken(call: Call, tmp_path: Path) -> None:
    said = call("train", DATA, "--network", "mlp?hidden=4", "--steps", "2", "--batch", "9", "--rate", "0.5",
                "--optimizer", "sgd", "--json")  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["steps"] == 2


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--optimiser", "adagrad"), "optimiser must be one of adam, adam-l2, sgd, got 'adagrad'"),
        (("--milestones", "half"), "got milestones 'half', expected shares of the run"),
        (("--learning-rate", "-1"), "learning_rate must be above 0"),
        (("--epsilon", "0.1", "--target", "0.8"), "got --epsilon and --target; give one of them"),
    ],
)
def test_bad_values_end_in_one_line(call: Call, tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    said = call("add", "ten", DATA, *options)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert line in said.err
    assert not (tmp_path / "nearkin-zoo").exists()


def test_restart_begins_again_and_resume_is_a_note(call: Call, tmp_path: Path) -> None:
    quick = ("train", DATA, "--network", "mlp?hidden=4", "--steps", "2")
    said = call(*quick, "--resume")
    assert (said.code, said.err.splitlines()[0]) == (
        0, "--resume has no effect: the same command continues by itself; --restart starts again"
    )  # fmt: skip
    assert "--resume" not in call("train", "--help").out
    (tmp_path / "model.safetensors.part").write_bytes(b"of an interrupted run")
    said = call(*quick, "--overwrite", "--restart")
    assert said.code == 0
    assert "model.safetensors.part" not in said.err, "it was not even read"
    assert not (tmp_path / "model.safetensors.part").exists()
