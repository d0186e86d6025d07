"""Two tasks solved one after the other: the search of the second starts from the cells of the first.

python examples/04_solve.py [FOLDER]
"""

import sys
from pathlib import Path

import torch

import nearkin as nk
from nearkin.report.solution_page import solution_page

CELLS = nk.Budget(evaluations=1)  # for each search: far too few for real work
QUICK = {"epochs": 8, "trials": 1}


def main(folder: str) -> None:
    with nk.Zoo(folder) as zoo:
        first = nk.task("digits?detect=6&limit=160", name="six")
        nk.solve(first, zoo, CELLS, only=("full-search", "svm"), **QUICK)
        second = nk.task("digits?detect=8&limit=160", name="eight")
        solution = nk.solve(second, zoo, CELLS, only=("kin-search", "finetune", "svm"), **QUICK)
    file, page = Path(folder) / "eight.safetensors", Path(folder) / "eight.html"
    solution.save(file)
    page.write_text(solution_page(solution))
    print(solution.sentence)
    print("the search:", solution.relations.why)
    for row in solution.standings:
        print(f"{row.name:10s} {row.validation:.3f} on the validation set, {row.parameters:7,} parameters")
    loaded = nk.Solution.load(file)
    prediction = loaded.predict(second.test.inputs.take(torch.arange(len(second.test))))
    right = (prediction.labels == second.test.labels()).float().mean()
    print(f"read again from {file}: {right:.3f} of the test set right")
    print("the report is in", page)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example-zoo")
