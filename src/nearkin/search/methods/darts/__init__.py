"""DARTS and PC-DARTS: gradients of the validation loss choose the operations of a supernet."""
