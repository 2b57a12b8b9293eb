"""What the overview and the frame show, from the API's answers."""
