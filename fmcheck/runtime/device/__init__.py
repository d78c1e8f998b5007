"""The device: ledgers, records and clocks in its own memory, kept by Triton kernels."""
