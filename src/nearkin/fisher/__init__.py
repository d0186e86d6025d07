"""Fisher information: diagonals, per-sample gradients, products, tangent kernels, spectra.

`operators` (for GPyTorch and SciPy), `kronecker` and `spectra` are modules of their own, imported where needed.
"""

from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.full import fisher_blocks, fisher_matrix
from nearkin.fisher.products import FisherProduct
from nearkin.fisher.scores import sample_gradients
from nearkin.fisher.tangent import tangent_kernel, tangent_product
from nearkin.fisher.values import FisherDiagonal, multitask_fisher

__all__ = [
    "FisherDiagonal",
    "FisherProduct",
    "diagonal",
    "fisher_blocks",
    "fisher_matrix",
    "multitask_fisher",
    "sample_gradients",
    "tangent_kernel",
    "tangent_product",
]
