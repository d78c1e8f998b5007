"""How a watched run is shown: what was found, what led to it, and what was checked."""
