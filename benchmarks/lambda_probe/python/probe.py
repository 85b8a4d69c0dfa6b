"""What the worker's cold start is measured by: the libraries that it is built on, and one statement."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from aws_lambda_powertools import Logger
from pydantic import BaseModel

__all__ = ["BaseModel"]

logger = Logger(service="probe")
connection: psycopg.Connection | None = None


def handler(event: dict[str, Any], context: Any) -> Any:
    global connection
    if connection is None:
        connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=None)
    return connection.execute("SELECT 1").fetchone()
