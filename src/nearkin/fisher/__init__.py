"""Fisher information: per-sample scores, diagonals, products, tangent kernels, spectra, at the cost of a training step."""
