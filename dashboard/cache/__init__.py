"""The cache explorer: the prefix tree, hot prefixes, migrations."""
