"""A plugin that audits: it writes down every iteration, and adds a rule of the house.

Hooks are async methods marked with `@hook`. One that only looks runs in the mode `OBSERVE`: its
failure is logged and never touches the call. One that changes something runs in the mode
`SEQUENTIAL` (the default): it returns a changed copy of what it was handed.

Run it: ``python examples/audit_plugin.py``
"""

from __future__ import annotations

import json
import sys

from mellea_like import MelleaError, RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend
from mellea_like.hooks import HookMode, HookType, Plugin, PluginSet, hook
from mellea_like.requirements.checks import excludes, word_count

NO_ADDRESSES = excludes("@", name="no_addresses", check_only=True)


class AuditLog(Plugin):
    """Writes one line of JSON an iteration, and one at the end of the call."""

    def __init__(self, write) -> None:
        self.write = write

    @hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
    async def iteration(self, payload) -> None:
        lacks = [requirement.name for requirement, _ in payload.slice.failures]
        self._line(iteration=payload.iteration, outcome=payload.slice.outcome, lacks=lacks)

    @hook(HookType.SAMPLING_LOOP_END, mode=HookMode.OBSERVE)
    async def end(self, payload) -> None:
        usage = sum((s.usage.total_tokens for s in payload.slices), 0)
        self._line(stop=payload.stop_reason, iterations=len(payload.slices), tokens=usage)

    def _line(self, **fields) -> None:
        self.write(json.dumps(fields))


@hook(HookType.VALIDATION_PRE_CHECK)
async def house_rule(payload):
    """Check every draft of every call for e-mail addresses."""
    return payload.model_copy(update={"requirements": (*payload.requirements, NO_ADDRESSES)})


def main() -> int:
    backend = ScriptedBackend(
        [
            "For help, please do not hesitate to write to our staff at any time of the day.",
            "Questions? Write to nora@example.org.",
            "Questions? Ask at the front desk.",
        ]
    )
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, plugins=[AuditLog(print)])
    try:
        with PluginSet("house rules", [house_rule]):
            result = strategy.sample_sync("Say where to ask.", [word_count(at_most=8)])
        print(f"The text: {result.unwrap()}")
    except MelleaError as exc:
        print(f"No text: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: {"iteration": 1, "outcome": "failed", "lacks": ["word_count"]}
# expect: {"iteration": 2, "outcome": "failed", "lacks": ["no_addresses"]}
# expect: {"iteration": 3, "outcome": "passed", "lacks": []}
# expect: {"stop": "passed", "iterations": 3, "tokens": ...}
# expect: The text: Questions? Ask at the front desk.
