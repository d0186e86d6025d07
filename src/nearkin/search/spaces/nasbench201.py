"""Cells of the tabular benchmarks NAS-Bench-201 and TransNAS-Bench-101 (micro): four nodes, six edges."""

import itertools
import re

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.spaces.base import unknown_operation
from nearkin.search.spaces.general import GeneralSpace, complete_cell

NASBENCH201_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
TRANSNAS101_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3")
"""Operations in the order of the digits of an architecture string."""

_NODES = 4
_STEM = "64-41414-"
_TERM = re.compile(r"([a-z0-9_]+)~([0-9])")


def nasbench201() -> GeneralSpace:
    """The 15,625 cells of NAS-Bench-201, of which 6,466 are different (`unique_key`).

    >>> nasbench201().size()
    15625
    """
    return GeneralSpace((_NODES,), NASBENCH201_OPERATIONS, "nasbench201", nasbench201_key)


def transnas101() -> GeneralSpace:
    """The 4,096 cells of TransNAS-Bench-101's micro space.

    >>> transnas101().size()
    4096
    """
    return GeneralSpace((_NODES,), TRANSNAS101_OPERATIONS, "transnas101")


def nasbench201_cell(arch: str) -> Cells:
    """Cell of an architecture string.

    >>> print(nasbench201_cell("|none~0|+|avg_pool_3x3~0|none~1|+|none~0|none~1|skip_connect~2|"))
    normal(0): 1 = none(0); 2 = avg_pool_3x3(0) + none(1); 3 = none(0) + none(1) + skip_connect(2); out = 3
    """
    nodes = [node.split("|") for node in arch.split("+")]
    terms = [[_TERM.fullmatch(term) for term in node[1:-1]] for node in nodes]
    edges = [[(match[1], int(match[2])) for match in node if match] for node in terms]
    fits = all(node[0] == node[-1] == "" for node in nodes) and all(map(all, terms))
    require(
        fits and [[source for _, source in node] for node in edges] == [[0], [0, 1], [0, 1, 2]],
        f"a NAS-Bench-201 cell is written |op~0|+|op~0|op~1|+|op~0|op~1|op~2|, got {arch!r}",
        DataError,
    )
    names = tuple(name for node in edges for name, _ in node)
    reason = unknown_operation(names, NASBENCH201_OPERATIONS)
    require(not reason, f"{arch!r} is not in the space nasbench201: {reason}", MismatchError)
    return complete_cell(names, _NODES)


def nasbench201_arch(genotype: Genotype) -> str:
    """Architecture string of a cell of NAS-Bench-201.

    >>> arch = "|none~0|+|avg_pool_3x3~0|none~1|+|none~0|none~1|skip_connect~2|"
    >>> nasbench201_arch(nasbench201_cell(arch)) == arch
    True
    """
    nasbench201().require_member(genotype)
    return "+".join("|" + "|".join(f"{name}~{i}" for i, name in enumerate(node)) + "|" for node in _by_node(genotype))


def nasbench201_key(genotype: Genotype) -> str:
    """Text by which NAS-Bench-201 itself distinguishes its cells: 6,466 classes.

    The text of a node is the sum of the texts of its edges in alphabetical order. An identity has the text of its
    source; zero is `#` and stays in the sum. Nested sums keep their order, so this is neither isomorphism nor equality
    of functions. Use `canonical` elsewhere.

    >>> cell = nasbench201_cell("|none~0|+|avg_pool_3x3~0|none~1|+|none~0|none~1|skip_connect~2|")
    >>> nasbench201_key(cell)
    '#+#+#+(x)avg_pool_3x3'
    """
    texts = ["x"]
    for node in _by_node(genotype):
        texts.append("+".join(sorted(_term(name, texts[source]) for source, name in enumerate(node))))
    return texts[-1]


def transnas101_cell(arch: str) -> Cells:
    """Cell of an architecture string `64-41414-a_bc_def`.

    >>> print(transnas101_cell("64-41414-1_02_003"))
    normal(0): 1 = skip_connect(0); 2 = none(0) + nor_conv_1x1(1); 3 = none(0) + none(1) + nor_conv_3x3(2); out = 3
    """
    require(
        re.fullmatch(_STEM + "[0-3]_[0-3]{2}_[0-3]{3}", arch) is not None,
        f"a TransNAS-Bench-101 cell is written {_STEM}a_bc_def with digits from 0 to 3, got {arch!r}",
        DataError,
    )
    digits = arch.removeprefix(_STEM).replace("_", "")
    return complete_cell(tuple(TRANSNAS101_OPERATIONS[int(digit)] for digit in digits), _NODES)


def transnas101_arch(genotype: Genotype) -> str:
    """Architecture string of a cell of TransNAS-Bench-101.

    >>> transnas101_arch(transnas101_cell("64-41414-1_02_103"))
    '64-41414-1_02_103'
    """
    transnas101().require_member(genotype)
    return _STEM + "_".join(
        "".join(str(TRANSNAS101_OPERATIONS.index(name)) for name in node) for node in _by_node(genotype)
    )


def _by_node(genotype: Genotype) -> list[tuple[str, ...]]:
    """Operations on the edges that enter nodes 1, 2 and 3."""
    names = iter(genotype.operations()["normal"])
    return [tuple(itertools.islice(names, node)) for node in range(1, _NODES)]


def _term(operation: str, text: str) -> str:
    if operation == "none" or text == "#":
        return "#"
    return text if operation == "skip_connect" else f"({text}){operation}"
