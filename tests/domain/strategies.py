"""What the domain's property tests draw from."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from runlane.domain.durations import LONGEST, ZERO
from runlane.domain.queue import LARGEST_COUNT, Queue, Throttle

durations = st.timedeltas(min_value=ZERO, max_value=LONGEST)
counts = st.integers(min_value=1, max_value=LARGEST_COUNT)
lengths = st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST)
throttles = st.builds(
    Throttle,
    counts,
    st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(seconds=1)),
    st.integers(min_value=0, max_value=LARGEST_COUNT),
) | st.builds(Throttle, counts, lengths)
queues = st.builds(
    Queue,
    st.just("main"),
    default=st.booleans(),
    concurrency_limit=st.none() | counts,
    total_limit=st.none() | counts,
    dispatch_timeout=st.none() | lengths,
    dispatch_window=counts,
    throttle=st.none() | throttles,
)
