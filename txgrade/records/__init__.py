"""Results: what they hold, the gradebook that keeps them, and how a person's marks come in."""
