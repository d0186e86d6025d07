"""Task2Vec embeddings of tasks in a probe network at initialisation.

Achille et al. (2019) embed every task with one fixed, pretrained probe. A zoo has no such network, but all tasks of a
network, an input shape and a seed start from the same weights: these are the probe. Only a head is fitted, once per
task, so that the embedding of a target is shared by all sources, and that of a source can be stored.
"""

from nearkin.core.events import Work
from nearkin.core.types import Params
from nearkin.distance.baselines.task2vec import task2vec_embedding
from nearkin.distance.fisher_based.readings import refitted
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.diagonals import diagonal
from nearkin.nets.adopted_spec import adopted_spec
from nearkin.nets.registry import REFERENCE_OUTPUTS, build
from nearkin.tasks.task import Task

RIDGE = 0.01  # of the head; fixed, so that no samples are held out


def probe_embedding(task: Task, network: str, seed: int, trial: int, samples: int) -> Work[Params]:
    """The embedding of a task in the network that a trial starts from.

    Args:
        task: in the network's input shape.
        network: a network string.
        seed: of the probe's weights.
        trial: of the probe's weights.
        samples: number of training samples that are used.
    """
    adopted = adopted_spec(network) is not None  # what is drawn for such a network depends on the number of outputs
    num_outputs = REFERENCE_OUTPUTS if adopted else task.num_outputs
    probe = build(network, task.input_shape, num_outputs, seed, trial).eval()
    view = SourceOnTarget(probe, task, task.form, num_train=samples)
    model = refitted(view, ridges=(RIDGE,))
    fisher = yield from diagonal.work(model, *view.train, likelihood=task.likelihood)
    return task2vec_embedding(fisher, view.head)
