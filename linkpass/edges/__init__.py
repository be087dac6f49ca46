"""The edges touch the world, one outside thing a file. They may read the core's vocabulary and never one another."""
