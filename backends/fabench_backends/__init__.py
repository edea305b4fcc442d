"""Backends, one file or folder a library; they never import one another."""
