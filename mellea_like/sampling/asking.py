"""How a call's requests are sent: watched, within budgets, seen by hooks, and tried again.

From the inside out, a request of an iteration meets the incremental checks of the requirements,
the budgets, the hooks and telemetry, and the retries. So hooks see each retry, and budgets admit
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.sampling.observed import observed

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.sampling.call import Call

__all__ = ["surrounded"]


def surrounded(backend: Backend, call: Call, *, watched: bool = False) -> Backend:
    """Return a backend as the call's producers use it.

    Args:
        backend: the user's.
        call: the call.
        watched: whether incremental checks look at its replies.

    Returns:
        The backend itself where nobody has an interest in its requests.
    """
    # Most programs need neither, and are not to load them.
    if watched:
        from mellea_like.sampling.watched import WatchedBackend  # noqa: PLC0415

        backend = WatchedBackend(backend, call.plan.requirements)
    if call.plan.budgets:
        from mellea_like.limits.budgets import within_budgets  # noqa: PLC0415

        backend = within_budgets(backend, call.plan.budgets)
    return observed(backend, call)
