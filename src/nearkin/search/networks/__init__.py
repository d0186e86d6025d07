"""Networks of genotypes: cells, chains of blocks and recurrent cells, set into a macro-architecture."""
