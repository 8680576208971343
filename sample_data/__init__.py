"""Recordings that ship with weaklink: incidents (whole bundles) and formats (one file, one case)."""
