"""Operators: what torch runs in a step, what it touches, and what the host waits for."""
