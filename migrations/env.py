"""Alembic environment: runs on the connection that `storage.migrate` hands over."""

from __future__ import annotations

from alembic import context

from storage.migrate import comparison
from storage.schema import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations by `conductor db upgrade`, which opens the database")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    **comparison(connection),
)
with context.begin_transaction():
    context.run_migrations()
