"""The watch over a running engine's relay buffers. It knows nothing of the linter."""
