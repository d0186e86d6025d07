"""Tasks on shared inputs of which some labels are missing."""

import numpy as np
import pytest
import torch

from multitask_examples import GRADIENT, SPACE, passes
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.multitask.missing_labels import tasks_with_missing_labels

X = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
CLASSES = np.array(["a", "b"] * 20, dtype=object)
CLASSES[:10] = None
VALUES = X[:, 0, 0, 0].double().numpy().copy()
VALUES[30:] = np.nan
OPTIONS = InterleaveOptions(gradient=GRADIENT, transfer=EncoderTransfer(num_sets=8, num_augmentations=2, every=1))


def test_a_task_learns_from_its_labels_and_keeps_the_other_inputs() -> None:
    (classes, values), others = tasks_with_missing_labels(X, {"classes": CLASSES, "values": VALUES})
    assert (classes.likelihood, classes.classes, values.likelihood) == ("categorical", ("a", "b"), "gaussian")
    assert len(classes.train) + len(classes.test) == len(values.train) + len(values.test) == 30
    assert torch.equal(others["classes"].take(torch.arange(10)), X[:10])
    assert torch.equal(others["values"].take(torch.arange(10)), X[30:])


def test_test_samples_without_a_label_are_left_out() -> None:
    (task,), others = tasks_with_missing_labels(X, {"classes": CLASSES}, X, {"classes": CLASSES})
    assert (len(task.train), len(task.test), len(others["classes"])) == (30, 30, 10)


def test_inputs_without_labels_take_part_in_the_transfer() -> None:
    tasks, others = tasks_with_missing_labels(X, {"classes": CLASSES, "values": VALUES})
    searcher = Interleave(tasks, SPACE, OPTIONS, unlabelled=others)
    state = passes(searcher, 1)
    source = searcher._sources[0][0]
    assert len(source.examples) == len(searcher.learners[0].split(state.streams)[0]) + 10
    last = source.examples.take(torch.tensor([len(source.examples) - 1])).x
    torch.testing.assert_close(last, tasks[0].train.scaling(X[9:10].clone()))
    alone = Interleave(tasks, SPACE, OPTIONS)
    assert alone.settings() != searcher.settings()
    assert not torch.equal(passes(alone, 1).slots[1].weights["stem.0.weight"], state.slots[1].weights["stem.0.weight"])


def test_what_is_wrong_is_said_in_one_line() -> None:
    with pytest.raises(DataError, match="short: got 3 targets for 40 inputs"):
        tasks_with_missing_labels(X, {"short": [0, 1, 0]})
    with pytest.raises(DataError, match="none: every label is missing"):
        tasks_with_missing_labels(X, {"none": [None] * 40})
    with pytest.raises(OptionError, match="test inputs or test targets alone"):
        tasks_with_missing_labels(X, {"classes": CLASSES}, X)
    with pytest.raises(DataError, match="values: got no test targets"):
        tasks_with_missing_labels(X, {"values": VALUES}, X, {"other": VALUES})
    tasks, others = tasks_with_missing_labels(X, {"classes": CLASSES, "values": VALUES})
    with pytest.raises(MismatchError, match=r"inputs without labels of shape .* for 'third'"):
        Interleave(tasks, SPACE, OPTIONS, unlabelled={"third": others["values"]})
