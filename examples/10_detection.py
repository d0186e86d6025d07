"""Find digits in scenes: train a detector with the encoder of a genotype, and draw what it finds.

python examples/10_detection.py [PICTURE.svg [STEPS]]
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

import nearkin as nk
from nearkin.multitask.detection.average_precision import AreaLimits
from nearkin.multitask.detection.detector import detect, train_detector
from nearkin.report.svg import Canvas
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.skeleton import Skeleton
from nearkin.tasks.detections import DecodingOptions, Detections

CELLS = Genotype.parse("normal(0): 1 = conv3(0); 2 = conv3(1) + identity(0); out = 2")
ENCODER = Skeleton(channels=16, num_cells=3, stem_stride=2)  # feature maps with strides 2, 4 and 8
STEPS = 500  # about a minute
TRUE, FOUND = "#0067a8", "#b34700"
ZOOM, GAP, TOP, COLUMNS, ROWS = 5, 14, 54, 4, 2
DRAWN = DecodingOptions(least_score=0.35, one_class=True)  # the best class of every object


def frame(canvas: Canvas, corner: tuple[float, float], box: Iterable[float], colour: str, dashed: bool = False) -> None:
    x1, y1, x2, y2 = (ZOOM * value for value in box)
    place, size = (corner[0] + x1, corner[1] + y1), (x2 - x1, y2 - y1)
    canvas.rect(place, size, stroke=colour, width=2, dashed=dashed)


def picture(task: nk.Task, detections: list[Detections]) -> str:
    """The first test scenes with true boxes (dashed) and detections with class and score."""
    _, height, width = task.input_shape
    canvas = Canvas(GAP + COLUMNS * (ZOOM * width + GAP), TOP + ROWS * (ZOOM * height + GAP))
    canvas.rect((0, 0), (canvas.width, canvas.height), fill="paper")
    canvas.text(GAP, 22, "Digits found in test scenes", size=15, bold=True)
    for x, colour, words, dashed in (
        (GAP, TRUE, "true box", True),
        (GAP + 110, FOUND, f"found: class and score, from {DRAWN.least_score}", False),
    ):
        canvas.rect((x, 33), (14, 10), stroke=colour, width=2, dashed=dashed)
        canvas.text(x + 20, 42, words, size=12)
    images = task.test.inputs.take(torch.arange(COLUMNS * ROWS))
    for number, (image, target) in enumerate(zip(images, task.test.labels(), strict=False)):
        row, column = divmod(number, COLUMNS)
        corner = (GAP + column * (ZOOM * width + GAP), TOP + row * (ZOOM * height + GAP))
        grey = (255 * (1 - image[0])).to(torch.uint8).numpy()
        canvas.image(corner, (ZOOM * width, ZOOM * height), np.stack([grey, grey, grey, np.full_like(grey, 255)], -1))
        for label, *box in target.tolist():
            if label >= 0:
                frame(canvas, corner, box, TRUE, dashed=True)
        for box, score, label in zip(*(values.flip(0).tolist() for values in detections[number]), strict=True):
            frame(canvas, corner, box, FOUND)
            x, y = corner[0] + ZOOM * box[0] - 1, corner[1] + max(ZOOM * box[1] - 14, 0)
            canvas.rect((x, y), (38, 14), fill=FOUND)
            canvas.text(x + 3, y + 11, f"{task.classes[label]}  {score:.2f}", size=11, fill="#ffffff")
    return canvas.svg("detection", "Digits found in test scenes", "Scenes with true boxes and detections.")


def main(path: str, steps: int) -> None:
    task = nk.task("scenes?of=digits&size=32&count=2000&test=200")
    recipe = nk.Recipe(steps=steps, batch_size=32, learning_rate=1e-2)
    trained = train_detector(CELLS, task, ENCODER, recipe, limits=AreaLimits(10, 14))
    for name, value in trained.precision.to_dict().items():
        print(f"average precision, {name:7s} {value:.3f}" if value is not None else f"no {name} boxes")
    found = detect(trained.model, task.test.chosen(torch.arange(COLUMNS * ROWS)), DRAWN)
    Path(path).write_text(picture(task, found), encoding="utf-8")
    print(f"{trained.fit.seconds:.0f} s of training; picture: {path}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = dict(enumerate(sys.argv))
    main(arguments.get(1, "detection.svg"), int(arguments.get(2, STEPS)))
