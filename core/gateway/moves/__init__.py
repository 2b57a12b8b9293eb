"""Hot-prefix migration in the running service: what is copied, how, and what became of it."""
