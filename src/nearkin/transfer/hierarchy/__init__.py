"""Several tasks, one network: what they share, and source weights that suit them."""
