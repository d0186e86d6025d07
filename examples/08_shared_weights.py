"""ENAS on digits: how much genotypes that share weights forget, with and without plasticity.

python examples/08_shared_weights.py
"""

import torch

import nearkin as nk
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.registry import SearchProblem, searcher
from nearkin.search.searcher import run_search
from nearkin.search.spaces.registry import space

OPTIONS = {"epochs": 6, "batches_per_architecture": 5, "batch_size": 32, "learning_rate": 0.1, "controller_steps": 2}


def main() -> None:
    task = nk.task("digits?limit=800")
    skeleton = Skeleton(channels=4, num_cells=2)
    for plasticity in (False, True):
        options = {**OPTIONS, "plasticity": plasticity}
        problem = SearchProblem(task=task, space=space("enas?nodes=2"), skeleton=skeleton, options=options)
        result = run_search(searcher("enas", problem), nk.Budget(), seed=0)
        changes = ", ".join(f"{100 * epoch.mean:+.1f}" for epoch in result.forgetting)
        print(f"plasticity {'on ' if plasticity else 'off'}: mean change of the error in points, by epoch: {changes}")
    print(f"best genotype: {result.best.genotype}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
