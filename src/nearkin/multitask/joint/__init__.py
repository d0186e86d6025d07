"""Baselines of the interleaved search: joint training with several kinds of sharing, and other orders of training."""
