"""The model: what code means. It knows names, paths and relay buffers, and no rule."""
