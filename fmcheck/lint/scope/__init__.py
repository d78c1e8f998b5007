"""The scope of a run: the files that are linted, and the rules that lint them."""
