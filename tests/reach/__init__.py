"""Whether a watch reaches each child and loses nothing that it found: `python -m tests.reach`."""
