"""ENAS: a controller samples paths of a network with shared weights and is trained on their validation scores."""
