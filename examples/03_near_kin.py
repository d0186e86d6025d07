"""Tasks that are near a new one: by three measures, for all pairs, and as a picture.

python examples/03_near_kin.py [FOLDER]
"""

import sys
from pathlib import Path

import nearkin as nk
from nearkin.report.page import map_page

RECIPE = nk.Recipe(steps=120)
TASKS = {
    "zero": "digits?detect=0&limit=400",
    "six": "digits?detect=6&limit=400",
    "some": "digits?classes=0,1,2,3&rest=other&limit=400",
    "all": "digits?limit=400",
}


def main(folder: str) -> None:
    with nk.Zoo(folder) as zoo:
        for name, data in TASKS.items():
            zoo.add(nk.task(data, name=name), "lenet?width=0.5", trials=2, recipe=RECIPE)
        target = nk.task("digits?classes=0,1,2&rest=other&limit=400", name="new")
        for measure in ("short-finetune", "logme", "frechet"):
            ranking = zoo.near(target, measure)
            print(f"{measure:14s}", ", ".join(f"{kin.name} {kin.distance:.3f} ± {kin.std:.3f}" for kin in ranking))
        matrix = zoo.matrix()
        print("nearest by the Fréchet distance:", matrix.nearest())
        page = Path(folder) / "map.html"
        page.write_text(map_page(matrix))
        print("the map is in", page)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example-zoo")
