"""Networks: built by name or import path, seen as functions of their weights, split into encoder and head."""
