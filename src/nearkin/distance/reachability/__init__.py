"""Training as diffusion in a potential: gradient noise, path actions, minimum energy paths, escape times."""
