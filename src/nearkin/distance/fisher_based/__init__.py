"""Distances on Fisher information: Fréchet distances, their forms, and aligned networks."""
