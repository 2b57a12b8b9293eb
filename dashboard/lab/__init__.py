"""The lab: windows and traces under other policies."""
