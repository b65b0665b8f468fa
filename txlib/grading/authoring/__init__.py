"""Exercises and assignments: how they are read, recorded, released and proved."""
