"""The record of a run: what was checked and found, merged, and kept as a file."""
