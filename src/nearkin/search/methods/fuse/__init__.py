"""FUSE (paper 000): train candidates together; the largest mixing weight wins."""
