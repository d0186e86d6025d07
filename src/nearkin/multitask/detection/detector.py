"""Train a detector from scratch with the encoder of a genotype, and measure its average precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Work, operation
from nearkin.core.rng import derived_seed, seeded
from nearkin.core.state import State
from nearkin.multitask.detection.average_precision import AreaLimits, AveragePrecision, average_precision
from nearkin.multitask.detection.head import DetectionHead, DetectionHeadOptions, suited_options
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import Fit, fit
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import build_network
from nearkin.search.networks.cells import CellNetwork
from nearkin.search.networks.chains import ChainNetwork
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.supernet.reference import MapShape
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.detections import DecodingOptions, Detections, decode
from nearkin.tasks.examples import Examples
from nearkin.tasks.task import Task


class Detector(nn.Module):
    """Encoder and head: images `[N, C, H, W]` to outputs `[N, A, num_classes + 8]`.

    Args:
        encoder: network of a genotype, whose own head is removed.
        head: turns the encoder's feature maps into outputs.
    """

    def __init__(self, encoder: CellNetwork | ChainNetwork, head: nn.Module) -> None:
        super().__init__()
        encoder.head = nn.Identity()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        """Logits, offsets and anchors of every image."""
        outputs: Tensor = self.head(self.encoder.maps(x))
        return outputs


@dataclass(frozen=True, eq=False)
class TrainedDetector:
    """A trained detector.

    Attributes:
        model: the network with its weights.
        fit: its training; the metric is the average precision from counts.
        precision: average precision on the test set, as COCO defines it.
        detections: of every test image.
    """

    model: Detector
    fit: Fit
    precision: AveragePrecision
    detections: list[Detections]


def build_detector(
    genotype: Genotype,
    task: Task,
    skeleton: Skeleton | None = None,
    options: DetectionHeadOptions | None = None,
    seed: int = 0,
) -> Detector:
    """A new detector with random weights.

    Args:
        genotype: cells or a chain.
        task: a detection task.
        skeleton: macro-architecture of the encoder (default: one that suits the size of the images).
        options: of the head (default: anchors that suit the boxes of the task).
        seed: seed of the weights.
    """
    require(
        task.likelihood == "detection",
        f"'{task.name}' is a {task.likelihood} task, a detector needs boxes; use evaluate_genotype for it",
        MismatchError,
    )
    skeleton = skeleton or Skeleton.suited(task.input_shape)
    encoder = build_network(genotype, skeleton, task.input_shape, 1, seed)
    require(isinstance(encoder, CellNetwork | ChainNetwork), "a detector needs cells or a chain; use another genotype")
    assert isinstance(encoder, CellNetwork | ChainNetwork)
    shapes = map_shapes_of(encoder, task.input_shape)
    options = options or suited_options(task, [shape.reduction * skeleton.stem_stride for shape in shapes])
    with seeded(derived_seed(seed, "head")):
        return Detector(encoder, DetectionHead(shapes, len(task.classes), skeleton.stem_stride, options))


def map_shapes_of(encoder: CellNetwork | ChainNetwork, input_shape: Sequence[int]) -> tuple[MapShape, ...]:
    """Shapes of the feature maps of a network, finest first, from one pass on a blank image.

    >>> cells = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> map_shapes_of(build_network(cells, Skeleton(channels=4, num_cells=3), (1, 9, 9), 1), (1, 9, 9))
    (MapShape(channels=4, reduction=1), MapShape(channels=8, reduction=2), MapShape(channels=16, reduction=4))
    """
    with evaluation_mode(encoder):
        blank = torch.zeros(1, *input_shape)
        side = max(encoder.stem(blank).shape[2:])
        maps = encoder.maps(blank)
    return tuple(MapShape(x.shape[1], 2 ** round(math.log2(side / max(x.shape[2:])))) for x in maps)


def detect(
    model: nn.Module,
    examples: Examples,
    options: DecodingOptions | None = None,
    *,
    batch_size: int = 128,
    device: torch.device | None = None,
) -> list[Detections]:
    """Detections of a model on examples, in evaluation mode, on the CPU.

    Args:
        model: a detector.
        examples: images of one size.
        options: limits of scores and overlaps.
        batch_size: images at a time.
        device: where the model is (default: CPU).
    """
    height, width = examples.inputs.shape[1:]
    found: list[Detections] = []
    with evaluation_mode(model), torch.inference_mode():
        for x, _ in ordered_batches(examples, batch_size):
            found += decode(model(x.to(device)).float().cpu(), options, (height, width))
    return found


@operation
def train_detector(
    genotype: Genotype,
    task: Task,
    skeleton: Skeleton | None = None,
    recipe: Recipe | None = None,
    *,
    options: DetectionHeadOptions | None = None,
    limits: AreaLimits | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    resume: State | None = None,
) -> Work[TrainedDetector]:
    """Train a detector from scratch and measure it on the test set.

    Args:
        genotype: cells or a chain.
        task: a detection task.
        skeleton: macro-architecture of the encoder (default: one that suits the size of the images).
        recipe: of the training (default: one that suits the task).
        options: of the head (default: anchors that suit the boxes of the task).
        limits: of small, medium and large boxes (default: COCO's in the proportion of the images to 640 pixels).
        seed: seed of weights and batches.
        device: where it is trained (default: CPU).
        resume: checkpoint of an interrupted training.
    """
    model = build_detector(genotype, task, skeleton, options, seed)
    done = yield from fit.work(model, task, recipe, seed=seed, device=device, resume=resume, stage="detector")
    found = detect(model, task.test, device=device)
    limits = limits or AreaLimits.for_side(max(task.input_shape[1:]))
    boxes = task.test.labels()
    return TrainedDetector(model, done, average_precision(found, boxes, len(task.classes), limits), found)
