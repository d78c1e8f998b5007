"""Graph inputs: how a captured graph's static buffers are filled, reset and rebound."""
