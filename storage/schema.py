"""Every table of the database in one metadata, for migrations and comparisons."""

from __future__ import annotations

from storage import summary_models
from storage.models import metadata

SUMMARIES = (summary_models.rollups, summary_models.facets)

__all__ = ["SUMMARIES", "metadata"]
