"""Weight plasticity: models that share weights and are trained one after another keep what they have learned."""
