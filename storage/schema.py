"""Every table of the database in one metadata, for migrations and comparisons."""

from __future__ import annotations

from storage import documents, fleet_models, identity_models, summary_models
from storage.models import metadata

ALL = (*summary_models.TABLES, *fleet_models.TABLES, *identity_models.TABLES, *documents.TABLES)

__all__ = ["ALL", "metadata"]
