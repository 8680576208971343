"""Adapters: everything that touches the world (bytes, database, network, screen)."""
