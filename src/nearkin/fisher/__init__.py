"""Fisher information: scores, diagonals, products, tangent kernels and spectra at the cost of a training step."""

from nearkin.fisher.diagonal import diagonal as diagonal
from nearkin.fisher.values import FisherDiagonal as FisherDiagonal
