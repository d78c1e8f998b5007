"""Built-in lint rules: one module a rule, found by `fmcheck.registry`."""
