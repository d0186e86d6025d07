"""Architecture search: genotypes and their drawings, spaces, restrictions and limits."""
