"""Read-only web pages of a zoo, served on this machine: its tasks, their distances, and running commands."""
