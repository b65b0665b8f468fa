"""What people and other programs read of results: pages, tables, answers that look alike."""
