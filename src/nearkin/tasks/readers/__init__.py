"""Readers: one module per file format, each with `read(location, options) -> Task` and its `OPTIONS`."""
