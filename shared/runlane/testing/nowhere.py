"""Where the application is bound while no test has bound it elsewhere. Imports next to nothing: the plugin needs it before any test."""

from __future__ import annotations

from types import TracebackType

MARK = "the-test-does-not-use-the-runlane-fixture"
NOWHERE = {
    "DATABASE_URL": f"postgresql:///?host=/{MARK}",
    "RUNLANE_DATABASE_SECRET_ARN": "",
    "RUNLANE_QUEUE_URL": f"https://sqs.us-east-1.amazonaws.com/000000000000/{MARK}",
    "RUNLANE_QUEUE_URLS": "",
    "AWS_LAMBDA_FUNCTION_NAME": "",
}
"""A database and a queue that cannot be reached: a test that forgets the fixture fails."""
REMEDY = (
    "needs the fixture `runlane`: without it the application has no database in a test;"
    ' take `runlane` as an argument of the test, or mark it with @pytest.mark.usefixtures("runlane")'
)


def wanted_database(error: BaseException | None) -> bool:
    """Whether `error` comes of an attempt to connect to `NOWHERE`'s database."""
    while error is not None:
        if type(error).__module__.startswith("psycopg") and MARK in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def outside(traceback: TracebackType) -> TracebackType:
    """The traceback down to the line that called Runlane."""
    inner = traceback.tb_next
    below = None if inner is None or _is_inside(inner) else outside(inner)
    return TracebackType(below, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def _is_inside(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == "runlane"
