"""Reads the world: `sources` is where bytes come from, `formats` how they are read."""
