"""What can be found in a data set before anything is learned from it."""
