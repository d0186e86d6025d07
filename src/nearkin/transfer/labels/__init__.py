"""Labels as Gaussian posteriors of class scores, and scores as calibrated probabilities."""
