"""SQS as the transport: bindings of queues, the wakeup's wire format, and publishing."""
