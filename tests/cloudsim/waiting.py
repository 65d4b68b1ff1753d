"""What the checks with vendors' own clients share."""

import time


def until(what, look, seconds=30):
    """Waits until `look` answers with something true; fails with `what` after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if look():
            return
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")
