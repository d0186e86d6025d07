r"""Decision trees as torch modules, stored as a network string and tensors like every network.

Notation: N inputs, C outputs, T trees of at most M nodes. $v_t(x)$ is the value of the leaf of tree t for x.

| machine | outputs |
| --- | --- |
| boosted trees | $b + \sum_t v_t(x)$, each tree for one output |
| averaged trees | $\frac1T \sum_t v_t(x)$, or for classes $\log \frac{1}{T+1}(\frac1C + \sum_t v_t(x))$ |

The logarithm of averaged probabilities includes one more tree that gives every class the same probability: the order of
the classes stays, and no probability is 0.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.nets.size_limit import require_numbers
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import SIMPLE
from nearkin.solver.simple.machines import Machine

BLOCK = 2**22  # largest number of leaf values that are read at once
NODE_NUMBERS = 5  # input, threshold, child for missing values, two children


class TreeMachine(Machine):
    """Base class: decision trees that are evaluated together, one level at a time.

    Node m of tree t has index t M + m in the node tables; a leaf is its own child. All tensors are buffers.

    Attributes:
        feature: `[T M]`, index of the input that a node compares.
        threshold: `[T M]`; inputs up to the threshold go to the first child.
        missing: `[T M]`, the child (0 or 1) for NaN inputs.
        below: `[T M, 2]`, indices of the two children.
        value: `[T M]` or `[T M, C]`, values of a leaf.
    """

    feature: Tensor
    threshold: Tensor
    missing: Tensor
    below: Tensor
    value: Tensor

    def __init__(self, trees: int, nodes: int, depth: int, width: tuple[int, ...] = ()) -> None:
        super().__init__()
        require(min(trees, nodes, depth + 1) >= 1, f"trees need nodes, got {trees} trees of {nodes} nodes")
        require(depth <= nodes, f"a tree of {nodes} nodes is less deep than that, got {depth}")
        self.trees, self.nodes, self.depth = trees, nodes, depth
        count = trees * nodes
        indices = torch.arange(count, dtype=torch.int32)
        self.register_buffer("feature", torch.zeros(count, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(count))
        self.register_buffer("missing", torch.zeros(count, dtype=torch.uint8))
        self.register_buffer("below", torch.stack([indices, indices], 1))
        self.register_buffer("value", torch.zeros(count, *width))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C]` of inputs `[N, ...]`, summed in float64."""
        rows = x.flatten(1)
        if torch.compiler.is_exporting():  # an exported file takes any number of rows; blocks would fix the number
            return self._outputs(rows, self._leaves(rows))
        size = max(1, BLOCK * self.nodes // self.value.numel())
        return torch.cat([self._outputs(block, self._leaves(block)) for block in rows.split(size)])

    def _leaves(self, x: Tensor) -> Tensor:
        """Index of the leaf `[N, T]` of every tree."""
        roots = torch.arange(0, self.trees * self.nodes, self.nodes, device=x.device)
        node, below = roots.expand(x.shape[0], -1), self.below.flatten()
        for _ in range(self.depth):
            seen = x.gather(1, self.feature[node].long())
            second = (seen > self.threshold[node]) | (seen.isnan() & self.missing[node].bool())
            node = below[2 * node + second].long()
        return node

    @abstractmethod
    def _outputs(self, x: Tensor, leaves: Tensor) -> Tensor:
        """Outputs `[N, C]` of inputs that fall into these leaves `[N, T]`."""

    def _options(self) -> tuple[tuple[str, int], ...]:
        """Number of trees, largest number of nodes and largest depth, for the network string."""
        return ("depth", self.depth), ("nodes", self.nodes), ("trees", self.trees)

    def _levels(self) -> Tensor:
        """Depth of every node `[T, M]`; −1 for unused nodes."""
        level = torch.full((self.trees * self.nodes,), -1)
        front = torch.arange(0, self.trees * self.nodes, self.nodes, device=self.below.device)
        for depth in range(self.depth + 1):
            level[front.cpu()] = depth
            children = self.below[front].long()
            front = children[children[:, 0] != front].flatten()
        return level.view(self.trees, self.nodes)

    @property
    def num_parameters(self) -> int:
        """An input index and a threshold per comparison, and the values of every leaf."""
        reached = self._levels().flatten() >= 0
        indices = torch.arange(len(reached))
        leaves = int((reached & (self.below[:, 0].cpu() == indices)).sum())
        return 2 * (int(reached.sum()) - leaves) + leaves * (self.value.numel() // len(self.value))

    @property
    def multiply_adds(self) -> int:
        """Comparisons on the longest path of every tree, and one addition per tree and value."""
        return int(self._levels().amax(1).sum()) + self.trees * (self.value.numel() // len(self.value))


class BoostedTrees(TreeMachine):
    """Sum of decision trees.

    Attributes:
        output: `[T]`, the output that a tree adds to.
        baseline: `[C]`.
    """

    output: Tensor
    baseline: Tensor

    def __init__(self, trees: int, nodes: int, depth: int, num_outputs: int) -> None:
        super().__init__(trees, nodes, depth)
        self.register_buffer("output", torch.zeros(trees, dtype=torch.int64))
        self.register_buffer("baseline", torch.zeros(num_outputs))

    def _outputs(self, x: Tensor, leaves: Tensor) -> Tensor:
        sums = self.baseline.double().expand(x.shape[0], -1).clone()
        return sums.index_add_(1, self.output, self.value[leaves].double()).to(x.dtype)

    @property
    def network(self) -> str:
        """Network string with the number of trees, the largest number of nodes, and the largest depth."""
        return str(NetworkSpec(f"{SIMPLE}:boosted_trees", self._options()))

    @property
    def num_parameters(self) -> int:
        """Those of the trees, and the baseline."""
        return super().num_parameters + self.baseline.numel()

    def widened(self, constants: Tensor) -> Machine:
        """Append the constants to the baseline."""
        wide = BoostedTrees(self.trees, self.nodes, self.depth, len(self.baseline) + len(constants))
        baseline = torch.cat([self.baseline, constants.to(self.baseline)])
        for name, value in self.named_buffers():
            wide.get_buffer(name).copy_(baseline if name == "baseline" else value)
        return wide


class AveragedTrees(TreeMachine):
    """Mean of decision trees whose leaves hold `[C]` values; with `log` the logarithm of mean probabilities.

    >>> AveragedTrees(1, 1, 0, 2, log=True)(torch.zeros(1, 3)).softmax(1)
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, trees: int, nodes: int, depth: int, num_outputs: int, *, log: bool = False) -> None:
        super().__init__(trees, nodes, depth, (num_outputs,))
        self.log = log

    def _outputs(self, x: Tensor, leaves: Tensor) -> Tensor:
        sums = self.value[leaves].sum(1, dtype=torch.float64)
        if self.log:
            return ((sums + 1 / self.value.shape[1]) / (self.trees + 1)).log().to(x.dtype)
        return (sums / self.trees).to(x.dtype)

    @property
    def network(self) -> str:
        """Network string with the sizes of the trees, and whether outputs are logarithms of probabilities."""
        return str(NetworkSpec(f"{SIMPLE}:averaged_trees", (*self._options(), ("log", self.log))))

    def widened(self, constants: Tensor) -> Machine:
        """Append the constants to the values of every leaf."""
        wide = AveragedTrees(self.trees, self.nodes, self.depth, self.value.shape[1] + len(constants), log=self.log)
        value = torch.cat([self.value, constants.to(self.value).expand(len(self.value), -1)], 1)
        for name, buffer in self.named_buffers():
            wide.get_buffer(name).copy_(value if name == "value" else buffer)
        return wide


def boosted_trees(
    *, trees: int, nodes: int, depth: int = 0, input_shape: Sequence[int], num_outputs: int
) -> BoostedTrees:
    """Trees without values, which are loaded afterwards (default depth: the largest for this number of nodes)."""
    require_numbers((NODE_NUMBERS + 2) * trees * nodes, f"{trees} trees of {nodes} nodes")
    return BoostedTrees(trees, nodes, depth or (nodes - 1) // 2, num_outputs)


def averaged_trees(
    *, trees: int, nodes: int, depth: int = 0, log: bool = False, input_shape: Sequence[int], num_outputs: int
) -> AveragedTrees:
    """Averaged trees without values, which are loaded afterwards."""
    require_numbers((NODE_NUMBERS + num_outputs) * trees * nodes, f"{trees} trees of {nodes} nodes")
    return AveragedTrees(trees, nodes, depth or (nodes - 1) // 2, num_outputs, log=log)
