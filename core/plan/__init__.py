"""Cost model and planners: what a placement would cost, as pure functions."""
