"""Looking at runs and queues, and steering them."""
