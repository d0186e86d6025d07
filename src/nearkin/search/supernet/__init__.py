"""Supernets: one network for a whole space of cells, as a reference and as a fast implementation."""
