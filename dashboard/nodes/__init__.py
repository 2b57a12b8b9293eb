"""The nodes' page: rows, gauges, acts."""
