"""The settings' page: users, tokens, keys."""
