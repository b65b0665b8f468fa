"""What runs in a learner's kernel: checks, their inputs, verdicts by the recordings, and the learner's progress."""
