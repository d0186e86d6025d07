"""Networks of genotypes: stacked cells, chains of blocks and recurrent cells."""
