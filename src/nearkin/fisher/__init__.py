"""Fisher information: diagonals, per-sample gradients, products, tangent kernels, spectra.

Import `operators` (for GPyTorch and SciPy), `kronecker` and `spectra` as modules.
"""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.fisher.cotangents import Samples as Samples
    from nearkin.fisher.diagonals import diagonal as diagonal
    from nearkin.fisher.full import fisher_blocks as fisher_blocks
    from nearkin.fisher.full import fisher_matrix as fisher_matrix
    from nearkin.fisher.jacobian import Jacobian as Jacobian
    from nearkin.fisher.kronecker import KroneckerFisher as KroneckerFisher
    from nearkin.fisher.products import FisherProduct as FisherProduct
    from nearkin.fisher.scores import sample_gradients as sample_gradients
    from nearkin.fisher.tangent import tangent_kernel as tangent_kernel
    from nearkin.fisher.tangent import tangent_product as tangent_product
    from nearkin.fisher.values import FisherDiagonal as FisherDiagonal
    from nearkin.fisher.values import multitask_fisher as multitask_fisher
else:
    __getattr__, __dir__, __all__ = exports(__name__)
