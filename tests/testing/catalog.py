"""An application to test the testing kit with."""

from __future__ import annotations

from pydantic import BaseModel, Field

from runlane import Context, Lane, NonRetryable, Queue, Release, Retry, RetryAfter, Runlane, task
from runlane.adapters.postgres.storage import PostgresStorage
from runlane.testing import RecordingTransport

main = Queue("main", default=True)
narrow = Queue("narrow", concurrency_limit=1)
heard: list[str] = []
"""What handlers said, in the order in which they ran."""


class Order(BaseModel):
    name: str = Field(min_length=1)
    parts: int = 1


@task("orders.pack", queue=narrow, tenant=lambda order: order.name, retry=Retry(max_attempts=2))
def pack(order: Order, ctx: Context) -> dict[str, object] | Release:
    heard.append(order.name)
    match order.name:
        case "later":
            return ctx.release("10m", reason="not there yet") if ctx.attempt == 1 else {"late": True}
        case "busy":
            raise RetryAfter("30s")
        case "gone":
            raise NonRetryable("nobody wants it")
        case "broken":
            raise ValueError("it fell down")
        case "for ever":
            return ctx.release("0s")
        case "long":
            while True:
                ctx.check()
    return {"packed": order.parts, "key": ctx.tenant}


@task("orders.note")
def note(text: str) -> None:
    heard.append(text)


@task("orders.count", max_attempt_duration="2m")
async def count(parts: int, ctx: Context) -> float:
    heard.append(f"count {parts}")
    return ctx.remaining()


def shop() -> Runlane:
    """Bound to nothing yet."""
    return Runlane(lane=Lane(PostgresStorage("host=/nowhere"), RecordingTransport()), queues=[main, narrow], tasks=[pack, note, count])
