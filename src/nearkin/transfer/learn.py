r"""Hyper-parameters by marginal likelihood, of one task or pooled over several (appendix B of Maddox et al. 2019).

Noise and scale have a closed form but for one number, found by grid and line search in the kernel's eigenbasis
(`spectrum`). Scales of single layers, and noise on top of known noise, are climbed to by L-BFGS in log space from
several starts (`layer_scales`). Which mean the targets have, a constant or the network's own outputs, the evidence
decides.

Notation: as in `targets`.
"""

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Progress, Work, finish
from nearkin.core.rng import Streams
from nearkin.transfer.hyper import MEANS, Hyper, Mean
from nearkin.transfer.layer_scales import Climb, climbed
from nearkin.transfer.linearize import Linearized
from nearkin.transfer.prepared import Points, Prepared, prepared
from nearkin.transfer.spectrum import Best, Spectrum, best

FLOOR = 1e-3  # of the noise
LIMIT = 2000  # rows of a kernel whose eigenvalues are taken; of more points some are drawn
LAYERS_LIMIT = 800  # rows where single layers have scales
CONSTANT = 1e-20  # targets whose squares about the mean are below this share of their squares are constant
GUESS = 0.1  # share of noise where nothing can be learned


def learn(
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    *,
    noise: Tensor | None = None,
    mean: Mean | Literal["auto"] = "auto",
    layers: bool = False,
    extra: bool = False,
    floor: float = FLOOR,
    limit: int = LIMIT,
    seed: int = 0,
) -> Hyper:
    """The hyper-parameters under which targets are most probable.

    Args:
        linearized: the network.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`.
        noise: known variances of the observations `[N]` or `[N, K]`; then the noise learned is 0, unless `extra`.
        mean: `constant`, `network` or `zero`; `auto` takes the more probable of the first two.
        layers: whether every layer has a scale of its own.
        extra: whether to learn noise on top of the known.
        floor: the least noise, as a share of the function's prior variance: of a few points the evidence may well
            prefer a function through all of them, and would then promise far too much.
        limit: rows at the most; of more points some are drawn.
        seed: of the draw and of the starts.

    >>> import torch
    >>> from nearkin.transfer.linearize import linearize
    >>> flat, x = linearize(torch.nn.Linear(1, 1)), torch.linspace(-1, 1, 20)[:, None]
    >>> found = learn(flat, x, 3 * x[:, 0] + 0.1 * torch.cos(40 * x[:, 0]), mean="constant")
    >>> 0.001 < found.noise < 0.02, found.scale > 1
    (True, True)
    """
    return finish(
        learn_work(
            linearized, x, y, noise=noise, mean=mean, layers=layers, extra=extra, floor=floor, limit=limit, seed=seed
        )
    )


def learn_work(
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    *,
    noise: Tensor | None = None,
    mean: Mean | Literal["auto"] = "auto",
    layers: bool = False,
    extra: bool = False,
    floor: float = FLOOR,
    limit: int = LIMIT,
    seed: int = 0,
) -> Work[Hyper]:
    """`learn` as work."""
    tasks: list[Points] = [(x, y, noise)]
    return learn_pooled_work(
        linearized, tasks, mean=mean, layers=layers, extra=extra, floor=floor, limit=limit, seed=seed
    )


def learn_pooled(
    linearized: Linearized,
    tasks: Sequence[Points],
    *,
    mean: Mean | Literal["auto"] = "auto",
    layers: bool = False,
    extra: bool = False,
    floor: float = FLOOR,
    limit: int = LIMIT,
    seed: int = 0,
) -> Hyper:
    """The hyper-parameters under which the targets of several tasks together are most probable.

    Every task has weights and constants of its own; noise, scales and the kind of mean are shared. Options are those of
    `learn`; `limit` is for each task.
    """
    return finish(
        learn_pooled_work(linearized, tasks, mean=mean, layers=layers, extra=extra, floor=floor, limit=limit, seed=seed)
    )


def learn_pooled_work(
    linearized: Linearized,
    tasks: Sequence[Points],
    *,
    mean: Mean | Literal["auto"] = "auto",
    layers: bool = False,
    extra: bool = False,
    floor: float = FLOOR,
    limit: int = LIMIT,
    seed: int = 0,
) -> Work[Hyper]:
    """`learn_pooled` as work: notes tell what was chosen, cautions what could not be learned."""
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    require(limit >= 1, f"limit is 1 or more, got {limit}")
    require(1e-8 <= floor < 1, f"floor is a share of the prior variance from 1e-8 to 1, got {floor}")
    require(mean in (*MEANS, "auto"), f"mean is auto, {', '.join(MEANS)}, got {mean!r}")
    ready: list[Prepared] = []
    climbs = layers or extra
    for number, points in enumerate(tasks):
        rows = min(limit, LAYERS_LIMIT) if climbs else limit
        ready.append((yield from prepared(linearized, points, rows, climbs, Streams(seed).child("task", number))))
        yield Progress("kernels", number + 1, len(tasks))
    known = ready[0].known is not None
    require(
        all((one.known is not None) == known for one in ready),
        "some tasks have known noise and some have not; give it for all or for none",
        MismatchError,
    )
    kind, found = yield from _chosen(ready, mean, known, floor)
    noise = 0.0 if known else found.noise
    hyper = Hyper(noise=noise, scale=found.scale, mean=kind)
    if climbs and not found.guessed:
        parts = [(*one.rows(kind), one.known) for one in ready]
        kernels = [linearized.layer_kernels(one.x) if layers else {"": cast(Tensor, one.gram)} for one in ready]
        climb = Climb(kernels, parts, fixed_noise=known and not extra)
        hyper = yield from climbed(climb, hyper, Streams(seed).at("starts"), floor)
    return hyper


def _chosen(ready: Sequence[Prepared], mean: str, known: bool, floor: float) -> Work[tuple[Mean, Best]]:
    """The kind of mean, with its best noise and scale."""
    fits = all(one.network is not None for one in ready)
    kinds: list[Mean] = [cast(Mean, mean)] if mean != "auto" else ["constant", *(["network"] if fits else [])]  # type: ignore[list-item]
    require(
        mean != "network" or fits,
        "mean='network' needs as many targets as outputs; use mean='constant'",
        MismatchError,
    )
    seen: dict[Mean, Best] = {}
    for kind in kinds:
        spectra = [one.spectrum(kind) for one in ready]
        freedom = sum(one.rows - one.num_constants for one in spectra)
        left = sum(one.terms(0.0)[0] for one in spectra)
        total = sum(one.level * one.y.numel() for one in ready)
        if freedom <= 0 and kind != kinds[-1]:
            continue  # one point says nothing of a constant's error
        if not known and left <= CONSTANT * total:
            guess = _guess(ready, spectra, freedom > 0)
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


def _guess(ready: Sequence[Prepared], spectra: Sequence[Spectrum], constant: bool) -> Best:
    """Noise and scale where nothing varies: small if many points agree, wide if there is only one."""
    level = sum(one.level for one in ready) / len(ready) or 1.0
    diagonal = sum(one.level for one in spectra) / len(spectra) or 1.0
    if constant:
        return Best(1e-6 * level / diagonal, 1e-6 * level, 0.0, guessed=True)
    return Best(level / diagonal, GUESS * level, 0.0, guessed=True)
