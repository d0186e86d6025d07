"""Many points: posteriors by products alone, in function and in weight space."""
