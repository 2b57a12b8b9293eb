"""The HTTP side: OpenAI's API in front, engines behind, scheduling and admin routes beside."""
