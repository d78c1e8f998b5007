"""Source: the bytes, the text, the slices and the trees of one file."""

from fmcheck.lint.source.decoding import (
    decode,
    read,
    read_with_state,
    source_in,
    split_lines,
)

__all__ = ["decode", "read", "read_with_state", "source_in", "split_lines"]
