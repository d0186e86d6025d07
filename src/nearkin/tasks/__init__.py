"""Tasks: data, its likelihood, and the ways one task is made from another. Knows no network."""
