"""Genotypes: descriptions of architectures, written as one line of text."""
