"""The rivals, each in a virtual environment of its own, and the smallest queue there is as a ruler."""
