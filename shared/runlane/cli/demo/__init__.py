"""Two thousand runs through the real handlers on servers of their own, and proof that nothing went wrong."""
