"""Pages over a zoo, served on loopback: what is solved, what is near, and what runs just now. They change nothing."""
