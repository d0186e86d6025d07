"""Simple models as contenders: linear models, support vector machines, boosted trees; stored as torch modules."""
