"""Workers that live on: they poll storage, or consume what the transport delivers, until they are stopped."""
