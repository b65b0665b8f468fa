"""Where people mark: written answers and regrade requests, at the terminal or on a page, several people at once."""
