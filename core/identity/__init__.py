"""Who may do what: principals, their roles, credentials, and the keys of the data plane."""
