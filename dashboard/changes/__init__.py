"""The page of changes."""
