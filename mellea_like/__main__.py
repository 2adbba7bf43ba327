"""The entry point of the command ``mellea-like``, and of ``python -m mellea_like``.

Importing the command line takes a good part of a second, and Ctrl-C must work from the start. So
this module installs its signal handlers before it imports the rest.
"""

import atexit
import os
import signal
import sys


def main() -> int:
    """Run the command line, and return the exit code."""
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

    # Registered first, so called last: a later signal would end the interpreter with a traceback.
    atexit.register(ignore)
    from mellea_like.cli.main import main as run  # noqa: PLC0415

    return run()


def _leave(number: int, _frame: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
