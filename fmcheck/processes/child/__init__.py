"""A child process: how it learns of the run that started it, and what it does then."""
