"""A whole run: which submissions, by which processes, shown how."""
