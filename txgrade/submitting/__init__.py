"""Handing in, and reading what was handed in."""
