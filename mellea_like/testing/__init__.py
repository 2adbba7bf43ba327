"""For tests of code that uses this library: virtual time, recordings, a check of backends.

Needs the extra ``testing``: ``pip install 'mellea-like[testing]'``. The fixtures are in
`mellea_like.testing.pytest_plugin`.
"""

from mellea_like.testing.conformance import ConformanceError, check_backend
from mellea_like.testing.recording_plugin import RecordingPlugin
from mellea_like.testing.virtual_clock import DeadlockError, VirtualClock, run_virtual

__all__ = [
    "ConformanceError",
    "DeadlockError",
    "RecordingPlugin",
    "VirtualClock",
    "check_backend",
    "run_virtual",
]
