"""Fisher information: scores, diagonals, products, tangent kernels and spectra at the cost of a training step."""
