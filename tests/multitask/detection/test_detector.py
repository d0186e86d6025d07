"""Anchors, heads, feature maps of networks, and a detector that learns."""

import math

import pytest
import torch
from torch import nn

import nearkin as nk
from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import Streams
from nearkin.multitask.detection.anchors import AnchorOptions, anchor_boxes
from nearkin.multitask.detection.detector import build_detector, detect, map_shapes_of, train_detector
from nearkin.multitask.detection.head import DetectionHead, DetectionHeadOptions, suited_options
from nearkin.multitask.feature_pyramid import FeaturePyramid
from nearkin.multitask.task_heads import DenseHead, head_for
from nearkin.nets.recipe import Recipe
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.darts.gradient_options import GradientOptions
from nearkin.search.methods.darts.supernet_learner import SupernetLearner
from nearkin.search.networks.build import build_network
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.supernet.reference import Frame, MapShape
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.task import Task

CELLS = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
SMALL = Skeleton(channels=8, num_cells=3, stem_stride=2)
HEAD = DetectionHeadOptions(width=16, finest=4, anchors=AnchorOptions(scale=2.0, octaves=2))


@pytest.fixture(scope="module")
def scenes() -> Task:
    return nk.task("scenes?count=60&test=8")


def test_anchors_have_their_sizes_shapes_and_centres() -> None:
    options = AnchorOptions(scale=3, octaves=2, ratios=(0.5, 2.0))
    boxes = anchor_boxes(2, 3, 4, options).view(2, 3, 4, 4)
    sides = boxes[..., 2:] - boxes[..., :2]
    areas, ratios = sides.prod(-1), sides[..., 1] / sides[..., 0]
    torch.testing.assert_close(areas[1, 2], torch.tensor([144.0, 144, 288, 288]))
    torch.testing.assert_close(ratios[0, 0], torch.tensor([0.5, 2, 0.5, 2]))
    torch.testing.assert_close((boxes[1, 2, :, 2:] + boxes[1, 2, :, :2]) / 2, torch.tensor([[10.0, 6.0]]).expand(4, 2))


def test_a_pyramid_carries_coarse_maps_to_fine_levels() -> None:
    """With identities as convolutions, a level is the sum of its map and all coarser ones."""
    pyramid = FeaturePyramid([MapShape(2, 1), MapShape(2, 2), MapShape(2, 4)], 2)
    for layer in (*pyramid.lateral, *pyramid.smooth):
        nn.init.dirac_(layer.weight)
        nn.init.zeros_(layer.bias)
    maps = [torch.full((1, 2, side, side), value) for side, value in ((5, 1.0), (3, 10.0), (2, 100.0))]
    assert [float(level.detach().unique()) for level in pyramid(maps)] == [111, 110, 100]
    with pytest.raises(OptionError, match="one feature map or more"):
        FeaturePyramid([], 2)


def test_a_new_head_predicts_the_prior() -> None:
    shapes = [MapShape(4, 1), MapShape(8, 2), MapShape(8, 4)]
    head = DetectionHead(shapes, 5, stem_stride=2, options=HEAD)
    maps = [torch.randn(2, 4, 16, 16), torch.randn(2, 8, 8, 8), torch.randn(2, 8, 4, 4)]
    outputs = head(maps).detach()
    assert outputs.shape == (2, (64 + 16) * 6, 13)
    assert float(outputs[..., :5].sigmoid().mean()) == pytest.approx(0.01, rel=0.3)
    expected = torch.cat([anchor_boxes(8, 8, 4, HEAD.anchors), anchor_boxes(4, 4, 8, HEAD.anchors)])
    torch.testing.assert_close(outputs[0, :, -4:], expected)
    only = DetectionHead([MapShape(4, 1)], 5, options=HEAD)
    assert only.strides == [1], "a single map is used whatever its stride"


@pytest.mark.parametrize(
    "options",
    [{"width": 12}, {"depth": -1}, {"finest": 0}],
)
def test_wrong_heads(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))} must be"):
        DetectionHeadOptions(**options)
    for wrong in ({"scale": 0.0}, {"octaves": 0}, {"ratios": ()}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be"):
            AnchorOptions(**wrong)  # type: ignore[arg-type]


def test_a_dense_head_has_the_size_of_the_input() -> None:
    head = DenseHead([MapShape(4, 1), MapShape(8, 2)], 3, (13, 9))
    assert head([torch.randn(2, 4, 7, 5), torch.randn(2, 8, 4, 3)]).shape == (2, 3, 13, 9)


def genotypes() -> dict[str, tuple[Genotype, Skeleton]]:
    rng = Streams(0).at("genotypes")
    mobile = MobileSpace()
    return {
        "general": (GeneralSpace().sample(rng), Skeleton(channels=4, num_cells=3)),
        "darts": (DartsSpace().sample(rng), Skeleton(channels=4, num_cells=3)),
        "chain": (mobile.sample(rng), Skeleton(channels=4)),
    }


@pytest.mark.parametrize("kind", ["general", "darts", "chain"])
@pytest.mark.parametrize("stride", [1, 2])
def test_maps_of_networks(kind: str, stride: int) -> None:
    """Every resolution once, finest first; the mean of the last map is what the linear head reads."""
    genotype, skeleton = genotypes()[kind]
    skeleton = Skeleton.from_dict({**skeleton.to_dict(), "stem_stride": stride})
    network = build_network(genotype, skeleton, (1, 33, 20), 5).eval()
    x = torch.randn(2, 1, 33, 20)
    maps = network.maps(x)
    torch.testing.assert_close(network.head(maps[-1].mean((2, 3))), network(x))
    shapes = map_shapes_of(network, (1, 33, 20))
    assert [shape.reduction for shape in shapes] == [2**i for i in range(len(maps))]
    for shape, values in zip(shapes, maps, strict=True):
        side = math.ceil(33 / stride / shape.reduction)
        assert values.shape[1:3] == (shape.channels, side)


def test_heads_by_task(scenes: Task) -> None:
    shapes = (MapShape(4, 1), MapShape(8, 2))
    assert head_for(nk.task("digits"), 1) is None
    dense = head_for(nk.task("digits?dense=edges"), 1)
    assert dense is not None
    assert dense(shapes)([torch.zeros(1, 4, 8, 8), torch.zeros(1, 8, 4, 4)]).shape == (1, 1, 8, 8)
    boxes = head_for(scenes, 2)
    assert boxes is not None
    head = boxes(shapes)
    assert isinstance(head, DetectionHead)
    assert (head.num_classes, head.strides) == (10, [4])


@pytest.mark.parametrize(("side", "finest"), [(8.0, 4), (7.9, 2), (30.0, 8), (1.5, 2)])
def test_the_smallest_anchors_have_the_side_of_the_smaller_boxes(side: float, finest: int) -> None:
    """Most boxes are ten times as large; the map in use has a stride of at most half of the side, if any has."""
    sides = [side] * 4 + [10 * side] * 16
    boxes = [torch.tensor([[0.0, 0.0, length, length]]) for length in sides]
    images, labels = torch.rand(20, 1, 300, 300), [[0]] * 20
    task = Task.from_boxes("squares", images, boxes, labels, images[:2], boxes[:2], labels[:2])
    options = suited_options(task, [2, 4, 8])
    assert options.finest == finest
    smallest = 2 * options.anchors.shapes(finest)[1]  # the square one of the first octave
    assert smallest.tolist() == pytest.approx([side, side])


@pytest.mark.slow
@pytest.mark.parametrize("data", ["scenes?count=60&test=8", "digits?dense=edges&limit=60"])
def test_supernets_learn_with_such_heads(data: str) -> None:
    task, layout = nk.task(data), SupernetLayout.of(GeneralSpace((3,), ("zero", "conv3")))
    options = GradientOptions(frame=Frame(channels=4, num_cells=3), batch_size=8)
    learner = SupernetLearner(task, layout, options, head=head_for(task, options.frame.stem_stride))
    state = learner.init(0)
    architecture = layout.initial(torch.Generator().manual_seed(0))
    batch = learner.training_batch(state.streams, 0)
    losses = [learner.weight_step(state, architecture, batch, 0.02) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_detector_learns_one_scene_by_heart() -> None:
    """Trained on few scenes, it finds their objects: loss, anchors, decoding and average precision fit together."""
    scenes = nk.task("scenes?count=60&test=8&objects=2&background=plain")
    few = torch.arange(12)
    known = Task("known", scenes.train.chosen(few), scenes.train.chosen(few), "detection", scenes.classes,
                 scenes.input_shape)  # fmt: skip
    recipe = Recipe(steps=150, batch_size=12, learning_rate=1e-2)
    trained = train_detector(CELLS, known, SMALL, recipe, options=HEAD)
    assert trained.precision.at_50 is not None
    assert trained.precision.at_50 > 0.8
    assert trained.fit.scores.metric > 0.75
    again = detect(trained.model, known.test, batch_size=5)
    for one, other in zip(trained.detections, again, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, atol=1e-3, rtol=1e-3)
        assert float(one.boxes.min()) >= 0
        assert float(one.boxes.max()) <= 32


def test_the_seed_decides_the_weights(scenes: Task) -> None:
    first, again, other = (build_detector(CELLS, scenes, SMALL, HEAD, seed=seed) for seed in (0, 0, 1))
    same = [a.equal(b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not next(first.parameters()).equal(next(other.parameters()))
    assert "encoder.head.weight" not in dict(first.named_parameters())


def test_other_tasks_are_refused() -> None:
    with pytest.raises(MismatchError, match="is a categorical task, a detector needs boxes"):
        build_detector(CELLS, nk.task("digits"))
