"""Every table of the database in one metadata, for migrations and comparisons."""

from __future__ import annotations

from storage import fleet_models, identity_models, summary_models
from storage.models import metadata

ALL = (*summary_models.TABLES, *fleet_models.TABLES, *identity_models.TABLES)

__all__ = ["ALL", "metadata"]
