"""The model: what code means. It knows tensors, streams and graphs, and no rule."""
