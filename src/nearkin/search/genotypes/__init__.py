"""Genotypes: descriptions of architectures as one line of text."""
