"""The operators of `fmcheck prove`: which faults can be planted, and where in a module."""
