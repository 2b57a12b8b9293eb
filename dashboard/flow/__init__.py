"""The flow page: tenants, prefill, decode."""
