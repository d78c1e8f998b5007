"""The journal of a run: a folder, in which each process writes what it checked and found."""
