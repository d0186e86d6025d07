"""Genotypes as pictures."""
