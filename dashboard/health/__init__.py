"""The page of storage and health."""
