"""Search methods, one module or folder each; `search.registry` lists them by name."""
