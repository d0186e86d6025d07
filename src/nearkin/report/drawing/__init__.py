"""Drawings of genotypes."""
