"""Where runs wait, and how many of them may run at once."""

from __future__ import annotations

from runlane import Queue

main = Queue("main", default=True)

# One at a time for each customer: two syncs of the same invoices would overwrite each other.
invoice_sync = Queue("invoice_sync", concurrency_limit=1, dispatch_timeout="2m")

# The provider builds four exports at a time, whoever asks.
exports = Queue("exports", total_limit=4)
