"""A backend `cpu` for Triton, by which vLLM knows that kernels can run: they are interpreted."""
