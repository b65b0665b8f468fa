"""Transformers, built by hand: the library behind the course."""
