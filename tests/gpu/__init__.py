"""What only a GPU shows, one command away: `python -m tests.gpu`; and what can be shown without."""
