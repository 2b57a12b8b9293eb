"""Alembic's versions of the schema in `storage.models`; run by `storage.migrate`."""
