"""Readers: one module a file format, each with `read(location, options) -> Task` and the `OPTIONS` it understands."""
