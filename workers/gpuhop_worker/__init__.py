"""gpuhop worker."""
