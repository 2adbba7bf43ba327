"""The entry point of the command ``mellea-like``: it imports next to nothing.

The package takes a good part of a second to import, and Ctrl-C works from the first moment on. So
this module stands beside the package, not in it.
"""

import atexit
import os
import signal


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    ours = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in ours:
        signal.signal(number, _leave)

    def ignore() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)

    # Registered first, so called last: from then on, a signal would end the interpreter in its own
    # way.
    atexit.register(ignore)
    from mellea_like.cli.main import main as run  # noqa: PLC0415

    return run()


def _leave(number: int, _frame: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)
