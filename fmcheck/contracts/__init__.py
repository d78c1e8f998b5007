"""The contracts that fmcheck ships: one TOML file an engine, named after it."""
