"""The use cases, over ports: trigger, deliver, operate, repair."""
