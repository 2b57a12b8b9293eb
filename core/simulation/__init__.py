"""The virtual-time fleet: the conductor's own code under a simulated load."""
