"""Pictures of a task space as SVG, and self-contained pages that show them."""
