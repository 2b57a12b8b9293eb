"""Which node holds which blocks: the prefix index and the event streams that feed it."""
