r"""Hyper-parameters by marginal likelihood, of one task or pooled over several (appendix B of Maddox et al. 2019).

Noise and scale have a closed form up to one number, which is found by grid and line search in the kernel's eigenbasis
(`spectrum`). Scales of single layers, and noise in addition to known noise, are found by L-BFGS in log space from
several starts (`layer_scales`). The evidence also selects the mean: a constant or the network's own outputs.

Notation: as in `targets`.
"""

from collections.abc import Sequence

from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.transfer.hyper import PLAIN, Hyper, Learning, Mean
from nearkin.transfer.layer_scales import LayerScaleEvidence, maximize_layer_scales
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.prepared import Points, TaskSummary, summarize_task
from nearkin.transfer.spectrum import EvidenceMaximum, Spectrum, maximize_evidence, mean_level, merge_spectra

CONSTANT = 1e-20  # targets are constant if their variance is below this fraction of their mean square
DEFAULT_NOISE = 0.1  # fraction of the targets' mean square, if noise cannot be learned


@operation
def learn(
    linearized: Linearized, x: Tensor, y: Tensor, *, noise: Tensor | None = None, how: Learning = PLAIN
) -> Work[Hyper]:
    """The hyper-parameters under which targets are most probable.

    Args:
        linearized: the network.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`.
        noise: known variances of the observations `[N]` or `[N, K]`; the learned noise is then 0, unless `how.extra`.
        how: the mean, scales of layers, the floor of the noise, the limit of rows.

    >>> import torch
    >>> from nearkin.transfer.linearized import linearize
    >>> flat, x = linearize(torch.nn.Linear(1, 1)), torch.linspace(-1, 1, 20)[:, None]
    >>> hyper = learn(flat, x, 3 * x[:, 0] + 0.1 * torch.cos(40 * x[:, 0]), how=Learning(mean="constant"))
    >>> 0.001 < hyper.noise < 0.02, hyper.scale > 1
    (True, True)
    """
    return learn_pooled.work(linearized, [(x, y, noise)], how)


@operation
def learn_pooled(linearized: Linearized, tasks: Sequence[Points], how: Learning = PLAIN) -> Work[Hyper]:
    """The hyper-parameters under which the targets of several tasks together are most probable.

    Every task has its own weights and constants; noise, scales and the kind of mean are shared. `how.limit` applies to
    each task.
    """
    summaries: list[TaskSummary] = []
    for number, points in enumerate(tasks):
        summaries.append((yield from summarize_task(linearized, points, how, number)))
        yield Progress("kernels", number + 1, len(tasks))
    return (yield from learn_from_summaries(summaries, how))


def learn_from_summaries(tasks: Sequence[TaskSummary], how: Learning) -> Work[Hyper]:
    """The hyper-parameters under which the targets of all tasks together are most probable."""
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    known = tasks[0].known
    require(
        all(task.known == known for task in tasks),
        "some tasks have known noise and others have none; give it for all or for none",
        MismatchError,
    )
    kind, maximum = yield from _chosen_mean(tasks, known, how.floor)
    hyper = Hyper(noise=0.0 if known else maximum.noise, scale=maximum.scale, mean=kind)
    prepared = [task.prepared for task in tasks if task.prepared is not None]
    if prepared and not maximum.is_default:
        rows = [(*task.rows(kind), task.known) for task in prepared]
        evidence = LayerScaleEvidence([task.kernels for task in prepared], rows, fixed_noise=known and not how.extra)
        hyper = yield from maximize_layer_scales(evidence, hyper, Streams(how.seed).at("starts"), how.floor)
    return hyper


def _chosen_mean(tasks: Sequence[TaskSummary], known: bool, floor: float) -> Work[tuple[Mean, EvidenceMaximum]]:
    """The most probable kind of mean, with its noise and scale."""
    kinds = [kind for kind in tasks[0].kinds if all(kind in task.kinds for task in tasks)]
    total = sum(task.level * task.num_numbers for task in tasks)
    maxima: dict[Mean, EvidenceMaximum] = {}
    for kind in kinds:
        spectra = merge_spectra([task.spectrum(kind) for task in tasks])
        freedom = sum(len(spectrum.values) * (spectrum.rows - spectrum.num_constants) for spectrum in spectra)
        residual = sum(spectrum.terms(0.0)[0] for spectrum in spectra)
        if freedom <= 0 and kind != kinds[-1]:
            continue  # from one point the error of a constant cannot be estimated
        if not known and residual <= CONSTANT * total:
            default = _default_maximum(tasks, spectra, freedom > 0)
            yield Caution(
                "the targets do not vary about their mean, so noise and scale cannot be learned; "
                f"noise {default.noise:.1e} and scale {default.scale:.1e} are defaults"
            )
            return kind, default
        maxima[kind] = maximize_evidence(spectra, known, floor)
        yield Note(f"mean {kind}: log evidence {maxima[kind].log_evidence:.2f}")
    kind, maximum = max(maxima.items(), key=lambda item: item[1].log_evidence)
    if maximum.at_bound:
        yield Caution(
            f"the evidence has its maximum at a bound of the search range: noise {maximum.noise:.1e}, scale "
            f"{maximum.scale:.1e}; there may be too few points"
        )
    return kind, maximum


def _default_maximum(tasks: Sequence[TaskSummary], spectra: Sequence[Spectrum], constant: bool) -> EvidenceMaximum:
    """Noise and scale if the targets do not vary: small if many points agree, large for a single point."""
    level = sum(task.level for task in tasks) / len(tasks) or 1.0
    diagonal = mean_level(spectra)
    if constant:
        return EvidenceMaximum(1e-6 * level / diagonal, 1e-6 * level, 0.0, is_default=True)
    return EvidenceMaximum(level / diagonal, DEFAULT_NOISE * level, 0.0, is_default=True)
