"""Files, read and written whole: never half of one, and never a surprise."""
