"""Digests of raw samples, to find samples that two tasks share.

A digest is a 64-bit hash of one input, without its label, in a canonical form. For an image this is its shape and its
pixels on a scale of 256 levels between its darkest and its brightest pixel, so that bytes, floats in [0, 1] and floats
in any other range have the same digest; a grey image that is repeated to three channels is hashed as a grey one. Rows
of tables and windows of tokens are hashed as they are. An image of another size, a crop or a changed image has another
digest: such pairs are not found.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from nearkin.tasks.checks.duplicates import block_rows
from nearkin.tasks.rows import Rows

LEVELS = 255
BELOW_HALF = 0.37  # k / 255, k / 16 and other common values are far from the limits of a level


def sample_digests(rows: Rows) -> Tensor:
    """Digests `[N]` of all rows as int64, in the order of the rows.

    >>> from nearkin.tasks.rows import Pixels, Values
    >>> images = torch.tensor([[0, 7, 80, 255]] * 3, dtype=torch.uint8).view(3, 1, 2, 2)
    >>> images[1, 0, 0, 1] = 8
    >>> digests = sample_digests(Pixels(images))
    >>> bool(digests[0] == digests[2]), bool(digests[0] == digests[1])
    (True, False)
    >>> digests.equal(sample_digests(Values(images / 255))), digests.equal(sample_digests(Values(images.float())))
    (True, True)
    """
    parts = [
        hashlib.blake2b(data, digest_size=8).digest()
        for block in torch.arange(len(rows)).split(block_rows(rows))
        for data in _canonical(rows.take(block))
    ]
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.int64)


def _canonical(values: Tensor) -> Iterator[bytes]:
    """Bytes to hash for each of the rows `[B, *shape]`."""
    if values.dim() == 4:
        x = values.double()
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        x = (LEVELS * (x - low) / (high - low).clamp_min(1e-300) + BELOW_HALF).floor().to(torch.uint8)
        grey = (x == x[:, :1]).all(3).all(2).all(1).tolist()
        rows = (image[:1] if same else image for image, same in zip(x, grey, strict=True))
    else:
        rows = iter(values + 0 if values.is_floating_point() else values)  # −0 becomes 0
    for row in rows:
        array = row.contiguous().numpy()
        yield repr(array.shape).encode() + array.tobytes()
