"""DARTS and PC-DARTS: the operations of a supernet are chosen by gradients of the validation loss."""
