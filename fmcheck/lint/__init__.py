"""The linter: paths, files, needles, blocks, verdicts. It knows nothing of the runtime."""
