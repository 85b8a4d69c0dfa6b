"""No peer but the ceiling: one table, claimed and deleted by one `SKIP LOCKED` statement a batch. A job that is lost on the way is lost."""

from __future__ import annotations

import json

import psycopg

from benchmarks.peers.lines import Measured, payload, steps, verb

TABLE = "CREATE TABLE raw_job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL)"
ADD = "INSERT INTO raw_job (payload) SELECT unnest(%s::text[])"
ADD_ONE = "INSERT INTO raw_job (payload) VALUES (%s)"
TAKE = """
DELETE FROM raw_job WHERE id = ANY (ARRAY(SELECT id FROM raw_job ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING payload"""


def main(name: str, dsn: str, number: int) -> None:
    measured = Measured()
    with psycopg.connect(dsn, autocommit=True) as connection:
        if name == "setup":
            connection.execute(TABLE)
        elif name == "enqueue":
            for numbers in steps(number):
                connection.execute(ADD, ([json.dumps(payload(n)) for n in numbers],))
        elif name == "trigger":
            measured.begin()
            for n in range(number):
                connection.execute(ADD_ONE, (json.dumps(payload(n)),))
            measured.answer()
        else:
            measured.begin()
            while rows := connection.execute(TAKE, (number,)).fetchall():
                for (text,) in rows:
                    measured.note(json.loads(text)["number"])
            measured.answer()


if __name__ == "__main__":
    main(*verb())
