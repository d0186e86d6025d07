"""Distances between Fisher information matrices: Fréchet distances, their forms, and alignment of networks."""
