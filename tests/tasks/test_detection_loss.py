"""Loss and metric of detection against loops over anchors, closed forms and float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearkin.core.errors import OptionError
from nearkin.tasks.boxes import overlap
from nearkin.tasks.detection_loss import Detection, assign_anchors
from nearkin.tasks.detections import DecodingOptions, Detections, box_offsets, count_hits, decode, moved_anchors
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.metrics import metric_title

LIKE = Detection()


def drawn_boxes(rng: torch.Generator, *shape: int) -> Tensor:
    corner = torch.rand(*shape, 2, generator=rng, dtype=torch.float64) * 20
    return torch.cat([corner, corner + 3 + torch.rand(*shape, 2, generator=rng, dtype=torch.float64) * 9], -1)


def drawn_problem(seed: int, classes: int = 3, anchors: int = 40) -> tuple[Tensor, Tensor]:
    """Outputs of three images and their boxes, of which the last image has none."""
    rng = torch.Generator().manual_seed(seed)
    places = drawn_boxes(rng, 1, anchors).expand(3, -1, -1)
    free = torch.randn(3, anchors, classes + 4, generator=rng, dtype=torch.float64)
    targets = torch.cat([torch.randint(classes, (3, 4, 1), generator=rng).double(), drawn_boxes(rng, 3, 4)], -1)
    targets[1, 2:], targets[2] = torch.tensor([-1.0, 0, 0, 0, 0]), torch.tensor([-1.0, 0, 0, 0, 0])
    return torch.cat([free, places], -1), targets


def plain_loss(outputs: Tensor, targets: Tensor) -> float:
    """The loss with loops over images, anchors and classes."""
    total = 0.0
    for image, boxes in zip(outputs, targets, strict=True):
        boxes = boxes[boxes[:, 0] >= 0]
        shared = overlap(image[:, -4:], boxes[:, 1:])
        best = {}
        for box in range(len(boxes)):
            anchor = int(shared[:, box].argmax())
            if anchor not in best or shared[anchor, box] > shared[anchor, best[anchor]]:
                best[anchor] = box
        loss, count = 0.0, 0
        for number, anchor in enumerate(image):
            largest = float(shared[number].max()) if len(boxes) else 0.0
            box = best.get(number, int(shared[number].argmax()) if largest >= 0.5 else None)
            if box is None and largest >= 0.4:
                continue
            for label, logit in enumerate(anchor[:-8].tolist()):
                p = 1 / (1 + math.exp(-logit))
                if box is not None and int(boxes[box, 0]) == label:
                    loss -= 0.25 * (1 - p) ** 2 * math.log(p)
                else:
                    loss -= 0.75 * p**2 * math.log(1 - p)
            if box is not None:
                count += 1
                x1, y1, x2, y2 = anchor[-4:].tolist()
                u1, v1, u2, v2 = boxes[box, 1:].tolist()
                wanted = (((u1 + u2) - (x1 + x2)) / 2 / (x2 - x1), ((v1 + v2) - (y1 + y2)) / 2 / (y2 - y1),
                          math.log((u2 - u1) / (x2 - x1)), math.log((v2 - v1) / (y2 - y1)))  # fmt: skip
                for given_value, value in zip(anchor[-8:-4].tolist(), wanted, strict=True):
                    gap = abs(given_value - value)
                    loss += 4.5 * gap**2 if gap < 1 / 9 else gap - 1 / 18
        total += loss / max(1, count)
    return total / len(outputs)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_loss_is_that_of_loops(seed: int) -> None:
    outputs, targets = drawn_problem(seed)
    assert float(LIKE.loss(outputs, targets)) == pytest.approx(plain_loss(outputs, targets), rel=1e-9)


def test_every_box_has_an_anchor() -> None:
    outputs, targets = drawn_problem(3, anchors=200)
    assigned = assign_anchors(outputs[..., -4:], targets)
    assert set(range(4)) <= set(assigned[0].tolist())
    assert set(assigned[2].tolist()) == {-1}
    far = torch.tensor([[[100.0, 100.0, 110.0, 110.0]]])
    assert assign_anchors(far, torch.tensor([[[0.0, 0.0, 0.0, 4.0, 4.0]]])).tolist() == [[-1]]


def test_gradients_are_those_of_finite_differences() -> None:
    outputs, targets = drawn_problem(5, anchors=8)
    free, anchors = outputs[..., :-4].clone().requires_grad_(), outputs[..., -4:]
    assert torch.autograd.gradcheck(lambda values: LIKE.loss(torch.cat([values, anchors], -1), targets), (free,))


def test_weights_and_batches() -> None:
    outputs, targets = drawn_problem(1)
    singles = torch.stack([LIKE.loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(LIKE.loss(outputs, targets), singles.mean())
    weights = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(LIKE.loss(outputs, targets, weights=weights), (weights * singles).mean())


def test_offsets_and_boxes_are_inverse() -> None:
    rng = torch.Generator().manual_seed(0)
    anchors, boxes = drawn_boxes(rng, 50), drawn_boxes(rng, 50)
    torch.testing.assert_close(moved_anchors(anchors, box_offsets(anchors, boxes)), boxes)


def sure_outputs(targets: Tensor, classes: int) -> Tensor:
    """Outputs whose anchors are the boxes, with a logit of 4 for their class and −9 for others."""
    boxes = targets[..., 1:].clone()
    boxes[targets[..., 0] < 0] = torch.tensor([50.0, 50.0, 60.0, 60.0]).to(boxes)
    logits = torch.full((*targets.shape[:2], classes), -9.0, dtype=boxes.dtype)
    for place in torch.nonzero(targets[..., 0] >= 0).tolist():
        logits[(*place, int(targets[(*place, 0)]))] = 4.0
    return torch.cat([logits, torch.zeros_like(boxes), boxes], -1)


def apart() -> Tensor:
    targets = torch.full((2, 3, 5), 0.0)
    targets[..., 0] = torch.tensor([[0, 1, 1], [2, -1, -1]])
    targets[..., 1:] = torch.tensor([[0.0, 0, 5, 5], [10, 0, 15, 5], [0, 10, 5, 15]])
    targets[1, 1:, 1:] = 0
    return targets


def test_perfect_outputs_score_one_and_sums_add_up() -> None:
    targets = apart()
    outputs = sure_outputs(targets, 3)
    whole = LIKE.tally(outputs, targets)
    assert LIKE.score(whole) == 1.0
    parts = LIKE.tally(outputs[:1], targets[:1]) + LIKE.tally(outputs[1:], targets[1:])
    assert parts.equal(whole)
    assert LIKE.score(LIKE.tally(outputs[:, :, [1, 2, 0, *range(3, 11)]], targets)) == 0.0, "wrong classes"


def test_repeated_detections_are_suppressed_within_a_class_only() -> None:
    box = torch.tensor([0.0, 0.0, 10.0, 10.0])
    logits = torch.tensor([[2.0, -9.0], [1.0, -9.0], [-9.0, 0.5]])
    anchors = torch.stack([box, box + 1, box])
    (found,) = decode(torch.cat([logits, torch.zeros(3, 4), anchors], -1)[None], sides=(10, 10))
    assert found.labels.tolist() == [0, 1]
    assert found.scores.tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.5))])
    assert found.boxes.tolist() == [[0, 0, 10, 10]] * 2
    single = DecodingOptions(one_class=True)
    assert decode(torch.cat([logits, torch.zeros(3, 4), anchors], -1)[None], single)[0].labels.tolist() == [0]
    loose = DecodingOptions(overlap=1.0, most=2)
    assert decode(torch.cat([logits, torch.zeros(3, 4), anchors], -1)[None], loose)[0].labels.tolist() == [0, 0]
    assert len(decode(torch.cat([logits - 20, torch.zeros(3, 4), anchors], -1)[None])[0].scores) == 0


def test_a_second_detection_of_a_box_is_a_miss() -> None:
    targets = torch.tensor([[[0.0, 0, 0, 10, 10], [0.0, 20, 20, 30, 30]]])
    boxes = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 10, 9], [20.0, 20, 30, 30]])
    counts = count_hits([Detections(boxes, torch.tensor([0.9, 0.8, 0.7]), torch.zeros(3).long())], targets, 1)
    assert counts.sum() == 5
    assert LIKE.score(counts.flatten()) == pytest.approx(0.5 + 0.5 * 2 / 3)


@pytest.mark.parametrize("member", ["nll", "slope", "sample", "information", "factors"])
def test_there_is_no_fisher_information(member: str) -> None:
    arguments = {"factors": 1}.get(member, 2)
    with pytest.raises(OptionError, match="got a detection task, which has a loss but not"):
        getattr(likelihood("detection"), member)(*[torch.zeros(1)] * arguments)


def test_the_metric_has_a_title() -> None:
    assert metric_title(LIKE.metric) == "average precision at IoU 0.5"
    assert LIKE.num_outputs(10) == 18
