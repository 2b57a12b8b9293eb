"""The tuning page: draft, preview, review, revisions."""
