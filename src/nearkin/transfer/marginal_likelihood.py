r"""Hyper-parameters by marginal likelihood, of one task or pooled over several (appendix B of Maddox et al. 2019).

Noise and scale have a closed form but for one number, found by grid and line search in the kernel's eigenbasis
(`spectrum`). Scales of single layers, and noise on top of known noise, are climbed to by L-BFGS in log space from
several starts (`layer_scales`). Which mean the targets have, a constant or the network's own outputs, the evidence
decides.

Notation: as in `targets`.
"""

from collections.abc import Sequence

from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.transfer.hyper import PLAIN, Hyper, Learning, Mean
from nearkin.transfer.layer_scales import Climb, climbed
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.prepared import Digest, Points, digested
from nearkin.transfer.spectrum import Best, Spectrum, best, mean_level, merged

CONSTANT = 1e-20  # targets whose squares about the mean are below this share of their squares are constant
GUESS = 0.1  # share of noise where nothing can be learned


@operation
def learn(
    linearized: Linearized, x: Tensor, y: Tensor, *, noise: Tensor | None = None, how: Learning = PLAIN
) -> Work[Hyper]:
    """The hyper-parameters under which targets are most probable.

    Args:
        linearized: the network.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`.
        noise: known variances of the observations `[N]` or `[N, K]`; then the noise learned is 0, unless `how.extra`.
        how: which mean, scales of layers, the floor of the noise, the limit of rows.

    >>> import torch
    >>> from nearkin.transfer.linearized import linearize
    >>> flat, x = linearize(torch.nn.Linear(1, 1)), torch.linspace(-1, 1, 20)[:, None]
    >>> found = learn(flat, x, 3 * x[:, 0] + 0.1 * torch.cos(40 * x[:, 0]), how=Learning(mean="constant"))
    >>> 0.001 < found.noise < 0.02, found.scale > 1
    (True, True)
    """
    return learn_pooled.work(linearized, [(x, y, noise)], how)


@operation
def learn_pooled(linearized: Linearized, tasks: Sequence[Points], how: Learning = PLAIN) -> Work[Hyper]:
    """The hyper-parameters under which the targets of several tasks together are most probable.

    Every task has weights and constants of its own; noise, scales and the kind of mean are shared. `how.limit` is for
    each task.
    """
    digests: list[Digest] = []
    for number, points in enumerate(tasks):
        digests.append((yield from digested(linearized, points, how, number)))
        yield Progress("kernels", number + 1, len(tasks))
    return (yield from learned(digests, how))


def learned(digests: Sequence[Digest], how: Learning) -> Work[Hyper]:
    """The hyper-parameters under which tasks are most probable, from what the evidence needs of them."""
    require(len(digests) > 0, "there is no task to learn from; give one or more", DataError)
    known = digests[0].known
    require(
        all(one.known == known for one in digests),
        "some tasks have known noise and some have not; give it for all or for none",
        MismatchError,
    )
    kind, found = yield from _chosen(digests, known, how.floor)
    hyper = Hyper(noise=0.0 if known else found.noise, scale=found.scale, mean=kind)
    ready = [one.climb for one in digests if one.climb is not None]
    if ready and not found.guessed:
        parts = [(*one.rows(kind), one.known) for one in ready]
        climb = Climb([one.kernels for one in ready], parts, fixed_noise=known and not how.extra)
        hyper = yield from climbed(climb, hyper, Streams(how.seed).at("starts"), how.floor)
    return hyper


def _chosen(digests: Sequence[Digest], known: bool, floor: float) -> Work[tuple[Mean, Best]]:
    """The kind of mean, with its best noise and scale."""
    kinds = [kind for kind in digests[0].kinds if all(kind in one.kinds for one in digests)]
    total = sum(one.level * one.num_numbers for one in digests)
    seen: dict[Mean, Best] = {}
    for kind in kinds:
        spectra = merged([one.spectrum(kind) for one in digests])
        freedom = sum(len(one.values) * (one.rows - one.num_constants) for one in spectra)
        left = sum(one.terms(0.0)[0] for one in spectra)
        if freedom <= 0 and kind != kinds[-1]:
            continue  # one point says nothing of a constant's error
        if not known and left <= CONSTANT * total:
            guess = _guess(digests, spectra, freedom > 0)
            yield Caution(
                "the targets do not vary about their mean, so that noise and scale cannot be learned; "
                f"noise {guess.noise:.1e} and scale {guess.scale:.1e} are guesses"
            )
            return kind, guess
        seen[kind] = best(spectra, known, floor)
        yield Note(f"mean {kind}: log evidence {seen[kind].log_evidence:.2f}")
    kind = max(seen, key=lambda one: seen[one].log_evidence)
    found = seen[kind]
    if found.at_bound:
        yield Caution(
            f"the evidence has its maximum at the edge of what is looked at: noise {found.noise:.1e}, scale "
            f"{found.scale:.1e}; there may be too few points"
        )
    return kind, found


def _guess(digests: Sequence[Digest], spectra: Sequence[Spectrum], constant: bool) -> Best:
    """Noise and scale where nothing varies: small if many points agree, wide if there is only one."""
    level = sum(one.level for one in digests) / len(digests) or 1.0
    diagonal = mean_level(spectra)
    if constant:
        return Best(1e-6 * level / diagonal, 1e-6 * level, 0.0, guessed=True)
    return Best(level / diagonal, GUESS * level, 0.0, guessed=True)
