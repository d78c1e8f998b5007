"""Running the linter: cache, processes, baselines, suppressions, fixes."""
