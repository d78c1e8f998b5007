"""Running the linter: files, settings, cache, processes, baselines, suppressions, fixes."""
