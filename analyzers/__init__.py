"""Judges what was read: pure functions over the nouns of `model`, no I/O, no clock, no randomness."""
