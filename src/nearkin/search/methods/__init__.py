"""Search methods, one module or folder each; `nearkin.search.registry` has one entry for each."""
