"""The breaker's page: evidence, trip, reset."""
