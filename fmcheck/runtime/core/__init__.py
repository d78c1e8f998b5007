"""The core: rows and what became of them, clocks, poison, sites and findings. It knows no torch."""
