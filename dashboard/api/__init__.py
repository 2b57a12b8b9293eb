"""What the console asks of the service: its clients, and the feed that pages read."""
