"""FUSE (paper 000): candidates are trained together and the largest relevance wins."""
