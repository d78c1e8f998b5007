"""Relay buffers: the tensor that an engine holds, the memory under it and who owns its rows."""
