"""Scenes: images with several objects of a data set at random positions and sizes, as a detection task.

Training scenes are made of training images, test scenes of test images. A box is the smallest one around the pixels of
an object that are brighter than a fifth.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.opening import require_bytes
from nearkin.core.rng import Streams
from nearkin.tasks.boxes import overlap, padded_targets
from nearkin.tasks.datastring import height_width, one_of, whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.pixels import require_images
from nearkin.tasks.rows import Pixels, Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("of", "size", "count", "test", "objects", "background", "seed")
BACKGROUNDS = ("noise", "plain")

VISIBLE = 0.2  # brightness of the pixels that a box contains
SMALLEST, LARGEST = 0.28, 0.56  # side of an object as a share of the shorter side of the scene
MOST_OVERLAP = 0.1  # of two boxes of a scene
PLACES = 10  # positions that are tried for an object before it is left out
BRIGHTEST_NOISE = 0.3
LEAST_SIDE = 16  # pixels of a scene


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """How scenes are made.

    Attributes:
        size: height and width in pixels.
        count: number of training scenes.
        test: number of test scenes.
        objects: largest number of objects in a scene; there is at least one.
        background: `noise` (uniform, darker than objects) or `plain` (black).
        seed: seed of all random numbers.
    """

    size: tuple[int, int] = (32, 32)
    count: int = 1000
    test: int = 200
    objects: int = 4
    background: str = "noise"
    seed: int = 0

    def __post_init__(self) -> None:
        require(min(self.size) >= LEAST_SIDE, f"a scene has {LEAST_SIDE} pixels a side or more, got {self.size}")
        for name in ("count", "test", "objects"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        require(self.background in BACKGROUNDS, f"background must be noise or plain, got {self.background!r}")


def read(source: Task, options: Mapping[str, str]) -> Task:
    """Scenes of a task's images, with the options of a data string."""
    numbers = {name: whole(options[name], name, least=1) for name in ("count", "test", "objects") if name in options}
    seed = whole(options.get("seed", "0"), "seed")
    background = one_of(options.get("background", "noise"), "background", BACKGROUNDS)
    size = height_width(options.get("size", "32"))
    return make_scenes(source, SceneOptions(size=size, background=background, seed=seed, **numbers))


def make_scenes(source: Task, options: SceneOptions) -> Task:
    """A detection task with the classes of a classification task of images.

    >>> images, labels = torch.ones(10, 1, 8, 8), torch.arange(10) % 2
    >>> task = make_scenes(Task.from_arrays("squares", images, labels, images, labels), SceneOptions(count=9, test=2))
    >>> task.likelihood, task.input_shape, len(task.train), task.train.targets.shape
    ('detection', (1, 32, 32), 9, (4, 5))
    """
    require_images(source)
    require(source.likelihood == "categorical", f"{source.name}: scenes need classes; use a data set with labels")
    channels, (height, width) = source.input_shape[0], options.size
    require_bytes(channels * height * width * (options.count + options.test), f"scenes of {height} x {width}")
    splits = ((source.train, options.count, "train"), (source.test, options.test, "test"))
    train, test = (_scenes(examples, count, options, Streams(options.seed).child("scenes", split))
                   for examples, count, split in splits)  # fmt: skip
    return Task.of(f"scenes of {source.name}", train, test, likelihood="detection", classes=source.classes)


def _scenes(examples: Examples, count: int, options: SceneOptions, streams: Streams) -> Examples:
    images = torch.empty(count, examples.inputs.shape[0], *options.size, dtype=torch.uint8)
    boxes, labels, classes = [], [], examples.labels()
    for number in range(count):
        scene, corners, sources = _scene(examples, options, streams.at(number))
        images[number] = scene.mul(255).round().to(torch.uint8)
        boxes.append(corners)
        labels.append(classes[sources])
    return Examples(Pixels(images), Values(padded_targets(boxes, labels, options.objects)))


def _scene(examples: Examples, options: SceneOptions, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels `[C, H, W]`, boxes `[n, 4]` and numbers of the source images `[n]`."""
    scene = torch.zeros(examples.inputs.shape[0], *options.size)
    if options.background == "noise":
        scene = torch.rand(scene.shape, generator=rng) * BRIGHTEST_NOISE
    wanted = int(torch.randint(1, options.objects + 1, (), generator=rng))
    boxes, sources = torch.zeros(0, 4), list[Tensor]()
    for number in torch.randint(len(examples), (wanted,), generator=rng):
        thing, inner = _object(examples, number, min(options.size), rng)
        height, width = thing.shape[1:]
        limits = torch.tensor([options.size[1] - width + 1, options.size[0] - height + 1])
        places = (torch.rand(PLACES, 2, generator=rng) * limits).long()
        moved = inner + places.repeat(1, 2)
        free = (overlap(moved, boxes) <= MOST_OVERLAP).all(1).nonzero()
        if len(free):
            first = int(free[0])
            left, top = places[first].tolist()
            window = scene[:, top : top + height, left : left + width]
            window.copy_(torch.maximum(window, thing))
            boxes, sources = torch.cat([boxes, moved[first, None]]), [*sources, number]
    return scene, boxes, torch.stack(sources)


def _object(examples: Examples, number: Tensor, side: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """An image `[C, h, w]` at a random size, and the box `[4]` around its visible pixels."""
    image = examples.inputs.take(number[None]).clamp(0, 1)
    factor = SMALLEST + (LARGEST - SMALLEST) * float(torch.rand((), generator=rng))
    scale = factor * side / max(image.shape[2:])
    size = [max(1, round(scale * length)) for length in image.shape[2:]]
    thing = F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)[0].clamp(0, 1)
    visible = (thing.amax(0) > VISIBLE).nonzero()
    require(len(visible) > 0, f"image {int(number)} of the source is dark, so it has no box; leave it out", DataError)
    (top, left), (bottom, right) = visible.amin(0).tolist(), visible.amax(0).tolist()
    return thing, torch.tensor([left, top, right + 1, bottom + 1], dtype=torch.float32)
