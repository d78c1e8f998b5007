"""`fmcheck prove`: plants faults into a copy of an engine, and says who notices."""
