"""The rival, in a virtual environment of its own."""
