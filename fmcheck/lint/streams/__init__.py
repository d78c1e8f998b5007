"""Streams: what a function does with streams, events and waits, asked of the model."""
