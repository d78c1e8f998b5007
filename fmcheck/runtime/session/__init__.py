"""The session: what is put around an engine for a watch, and all that the watch has found."""
