"""Changing a running scheduler: revisions, preview, shadow, canary, guard."""
