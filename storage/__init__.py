"""Keeps records: a writer that never makes anyone wait, and readers that cannot write."""
