"""Evidence: what an answer returned, as plain values, and how two such values compare."""
