"""Checks of a data set before anything is learned from it."""
