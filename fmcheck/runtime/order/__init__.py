"""Order: records, waits and launches of streams, and accesses that nothing orders."""
