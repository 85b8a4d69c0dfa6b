"""The local lane: an embedded Postgres, a local SQS and a stand-in for Lambda's event source mapping."""
