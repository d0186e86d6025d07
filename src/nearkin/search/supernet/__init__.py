"""One network for a whole space of cells, in a fast form and a plain one, and the searchers that train it."""
