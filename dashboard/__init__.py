"""The operations console: a web client of the admin API, and nothing else."""
