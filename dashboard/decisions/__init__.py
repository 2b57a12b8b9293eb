"""The decisions' pages: filters, one decision in full, what if."""
