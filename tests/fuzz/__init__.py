"""Fuzzing: the rules over mutated real files, and the contract loader over random contracts."""
