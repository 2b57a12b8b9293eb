"""The fleet: its state as arrays, what was promised, and which nodes to leave alone."""
