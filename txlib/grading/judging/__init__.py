"""One submission: run in a sealed kernel, and judged outside it."""
