"""Posteriors of many points by conjugate gradients, in function space and in weight space."""
