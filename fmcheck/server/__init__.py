"""The language server: `fmcheck server`, on pygls. Editors show findings as one types."""
