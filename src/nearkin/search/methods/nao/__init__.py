"""NAO: an encoder embeds genotypes, a predictor scores them, and gradient ascent in the embedding finds better ones."""
