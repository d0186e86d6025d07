"""Detection of objects: anchors, a head in the manner of RetinaNet, average precision, training from a genotype."""
