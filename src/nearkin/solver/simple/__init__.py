"""The models that a person would try first, fitted under a time limit and kept as networks, without pickles."""
