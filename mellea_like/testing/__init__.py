"""Tools for testing code that uses this library: virtual time, recordings, backend checks.

They need the extra ``testing``: ``pip install 'mellea-like[testing]'``. The fixtures are in
`mellea_like.testing.pytest_plugin`.
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.testing.conformance": "ConformanceError check_backend",
        "mellea_like.testing.recording_plugin": "RecordingPlugin",
        "mellea_like.testing.virtual_clock": "DeadlockError VirtualClock run_virtual",
    },
)
