"""Execution, and what is written about it while it goes on."""
