"""Fast implementation of the supernet: the operations of several edges run as one."""
