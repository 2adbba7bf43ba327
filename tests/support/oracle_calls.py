"""Generates random calls: a seed gives the description of a call and of all replies to it.

Descriptions are JSON, so they can be printed. A reply depends only on the seed and on the request's
place in the call, never on the order in which requests arrive. Hypothesis isn't used here, because
its examples change from version to version, and recordings must last.
"""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

Spec = dict[str, Any]

HOOKS = [
    "sampling_loop_start",
    "generation_pre_call",
    "generation_post_call",
    "generation_error",
    "validation_pre_check",
    "validation_post_check",
    "sampling_repair",
    "sampling_iteration",
    "sampling_loop_end",
]
MODES = ["sequential", "observe", "background"]

MOODS: dict[str, dict[str, float]] = {
    "mostly no": {"reply": 12, "empty": 0.3, "transient": 0.5},
    "even": {"reply": 10, "transient": 0.5},
    "mostly yes": {"reply": 14, "empty": 0.3, "permanent": 0.3},
    "never": {"reply": 10, "refused": 0.5, "cut": 0.5, "empty": 0.5},
    "down": {"transient": 8, "timeout": 1, "connection": 1, "reply": 3},
    "throttled": {"limited": 6, "reply": 2},
    "broken": {"permanent": 5, "foreign": 2, "reply": 2},
    "rough": {
        "reply": 10,
        "empty": 0.7,
        "refused": 0.7,
        "cut": 0.7,
        "filtered": 0.4,
        "garbled": 1,
        "transient": 1.5,
        "limited": 1,
        "timeout": 0.7,
        "malformed": 0.7,
        "connection": 0.7,
        "permanent": 0.6,
        "foreign": 0.4,
        "group": 0.4,
        "stray": 0.5,
        "invalid": 0.3,
    },
}
"""Weights of the kinds of replies, by the mood of a backend."""

YES = {"mostly no": 0.15, "even": 0.45, "mostly yes": 0.8, "never": 0.0, "down": 0.3}
MANNERS = ["obey"] * 8 + ["slow", "slow", "swallow", "replace", "unavailable"]


def seconds(r: Random, most: float = 3.0) -> float:
    """A random time, exact in binary so that sums are exact, and fine enough to avoid ties."""
    return r.randint(1, int(most * 2**15)) / 2**15


def make(seed: int) -> Spec:
    """Generate a call."""
    r = Random(f"call {seed}")
    plain = r.random() < 0.25
    strategy = r.choices(["rejection", "repair", "multi", "escalate", "own"], [7, 5, 5, 5, 4])[0]
    spec: Spec = {
        "seed": seed,
        "strategy": strategy,
        "loop_budget": r.randint(1, 5),
        "concurrency_budget": r.choice([1, 1, 2, 2, 3, 3, 4, 6]),
        "mood": r.choices(list(MOODS), [3, 4, 2, 1, 1, 0.4, 0.5, 5])[0],
        "latency": r.choices(["distinct", "equal", "zero", "mixed"], [17, 1, 1, 1])[0],
        "slowest": r.choice([1.0, 3.0, 3.0, 8.0]),
        "hangs": 0.0,
        "pieces": r.random() < 0.35,
        "action": r.choice(["text", "text", "ask", "task", "messages", "model"]),
        "requirements": requirements(r, plain=plain),
        "strategy_requirements": requirements(r, plain=True)[:1] if r.random() < 0.2 else [],
        "validate_all": r.choice([None, None, True, False]),
        "selection": {"kind": "first"},
        "schedule": None,
        "give_up": None,
        "timeout": None,
        "iteration_timeout": None,
        "retry": r.choice([None, None, {"attempts": 2}, {"attempts": 3, "initial": 1.0}]),
        "budget": None,
        "strategy_budget": None,
        "limits": [],
        "told": r.choice([None, None, "sequential", "sequential", "observe", "background"]),
        "acts": [],
        "plugins_by": r.choice(["strategy", "strategy", "scope", "process"]),
        "on_slice": None,
        "tools": None,
        "options": r.choice([{}, {}, {"seed": r.randint(0, 10**6)}, {"temperature": 0.5}]),
        "judge": r.random() < 0.3,
        "judge_delay": r.choice([0.5, 1.0, 3.0]),
        "accept_incomplete": r.random() < 0.08,
        "conversation": r.random() < 0.2,
        "validation_context": r.random() < 0.12,
        "telemetry": r.random() < 0.25,
        "cancel_grace": r.choice([5.0, 5.0, 0.5]),
        "stream": None,
        "leave": None,
    }
    if spec["action"] == "ask" and r.random() < 0.5:
        spec["requirements"] = spec["requirements"][:1]
    if strategy == "escalate":
        spec |= escalation(r, spec)
    if strategy == "own":
        spec["repair_fails"] = r.random() < 0.15
        spec["selects"] = r.choices(["first", "last", "nothing", "error"], [4, 4, 1, 1])[0]
    if not plain:
        enrich(r, spec)
    if spec["timeout"] or spec["iteration_timeout"] or spec["leave"]:
        spec["hangs"] = r.choice([0.0, 0.0, 0.1])
    return spec


def requirements(r: Random, *, plain: bool) -> list[Spec]:
    if r.random() < 0.06:
        return []
    kinds = ["yes"]
    more = ["blue", "judged", "streamed", "scored", "composed", "slow", "judged", "nested"]
    more += ["boom", "boom"]
    if not plain:
        kinds = r.choices(more, k=r.choice([0, 0, 1, 1, 2]))
        kinds.insert(r.randint(0, len(kinds)), r.choices(["yes", "streamed"], [4, 1])[0])
        if r.random() < 0.06:
            kinds.append(r.choice(["odd", "stray", "bug"]))
    return [requirement(r, kind) for kind in kinds]


def requirement(r: Random, kind: str) -> Spec:
    made: Spec = {
        "kind": kind,
        "tag": f"req-{r.randint(100, 999)}",
        "on_error": r.choice(["error", "error", "fail", "raise" if r.random() < 0.4 else "fail"]),
        "weight": r.choice([1.0, 1.0, 2.0, 0.5]),
        "check_only": r.random() < 0.12,
        "delay": seconds(r, 0.8),
        "timeout": None,
    }
    if kind == "slow":
        made["timeout"] = seconds(r, 1.5)
    if kind == "judged" and r.random() < 0.15:
        made["timeout"] = seconds(r, 1.0)
    if kind == "streamed":
        made["certain"] = r.choices(
            ["yes", "blue", "never", "reason", "error", "odd"], [6, 2, 1, 2, 1, 0.5]
        )[0]
    if kind == "judged":
        made["own_judge"] = r.random() < 0.2
    if kind == "composed":
        made["operator"] = r.choice(["and", "or", "or", "not", "at least"])
        parts = r.choices(["yes", "blue", "judged", "boom", "scored", "streamed"], k=3)
        if r.random() < 0.3:
            parts = ["streamed", "yes", "streamed"]
        made["parts"] = [requirement(r, part) for part in parts[: 1 if kind == "not" else 3]]
    return made


def escalation(r: Random, spec: Spec) -> Spec:
    stages = [
        {
            "turns": r.randint(1, 3),
            "carry": r.choice(["nothing", "best", "chat"]),
            "mood": r.choice([spec["mood"], "mostly no", "even", "rough", "broken"]),
            "requirements": requirements(r, plain=True)[:1] if r.random() < 0.2 else [],
            "judge": r.random() < 0.2,
            "budget": r.randint(1, 4) if r.random() < 0.2 else None,
            "options": {"temperature": 0.25} if r.random() < 0.2 else None,
        }
        for _ in range(r.randint(2, 3))
    ]
    after = r.random() < 0.2
    changed: Spec = {"stages": stages, "after": after}
    if after:
        changed["concurrency_budget"] = 1
    return changed


def enrich(r: Random, spec: Spec) -> None:  # noqa: C901, PLR0912, PLR0915 (one option after the other)
    escalate = spec["strategy"] == "escalate"
    if r.random() < 0.3:
        spec["timeout"] = seconds(r, 4 * spec["slowest"])
    if r.random() < 0.2:
        spec["iteration_timeout"] = seconds(r, 1.2 * spec["slowest"])
    if r.random() < 0.2:
        spec["selection"] = {"kind": "ordered"}
    elif r.random() < 0.55 and not escalate:
        spec["selection"] = selection(r)
        spec["loop_budget"] = max(2, spec["loop_budget"])
        spec["mood"] = r.choice([spec["mood"], "even", "mostly yes"])
        if r.random() < 0.7:  # Several have to pass.
            spec |= {"loop_budget": r.randint(3, 5), "concurrency_budget": r.randint(1, 4)}
            spec |= {"mood": r.choice(["even", "mostly yes"]), "timeout": None}
            spec |= {"requirements": [requirement(r, "yes")], "iteration_timeout": None}
    if spec["selection"]["kind"] != "ordered" and r.random() < 0.4:
        spec["schedule"] = schedule(r)
    elif spec["selection"]["kind"] == "ordered" and r.random() < 0.25:
        spec["schedule"] = {"kind": "staggered", "delay": seconds(r, 2.0)}
    ordered = spec["selection"]["kind"] == "ordered"
    if ordered and r.random() < 0.95:
        spec["after"] = False
    if not escalate and r.random() < (0.02 if ordered else 0.2):
        threshold, confidence = r.choice([(0.3, 0.9), (0.5, 0.6), (0.4, 0.7)])
        spec["give_up"] = {"threshold": threshold, "confidence": confidence}
    for name in ("budget", "strategy_budget"):
        if r.random() < 0.12:
            spec[name] = r.choice(
                [
                    {"requests": r.randint(1, 8)},
                    {"money": r.choice([0.0005, 0.002, 0.01])},
                    {"output_tokens": r.choice([60, 200]), "assume_output_tokens": 30},
                    {"seconds": seconds(r, 5.0)},
                ]
            )
    if spec["schedule"] and "known" in spec["schedule"]:
        spec |= {"slowest": 8.0, "concurrency_budget": r.randint(1, 3)}
        spec["options"] = {"seed": spec["seed"]}
    if r.random() < 0.12:
        spec["limits"] = [
            r.choice(
                [
                    {"kind": "concurrency", "most": r.randint(1, 2)},
                    {"kind": "rate", "requests": r.choice([30, 60])},
                    {"kind": "adaptive", "initial": 2},
                ]
            )
        ]
    several = spec["selection"]["kind"] not in {"first", "ordered"}
    if r.random() < (0.2 if several else 0.4):
        spec["acts"] = [act(r) for _ in range(r.choice([1, 1, 2, 3]))]
    if r.random() < 0.2:
        spec["on_slice"] = {"what": r.choice(["sync", "async", "async", "fail"]), "at": seconds(r)}
    if r.random() < 0.12:
        spec["tools"] = {
            "read_only": r.random() < 0.75,
            "both": r.random() < 0.3,
            "choice": r.choice([None, None, "auto", "required", "none", "look"]),
            "fails": r.random() < 0.25,
            "rounds": r.choice([0, 1, 2, 8, 8]),
            "share": r.choice([0.4, 0.8]),
            "delay": seconds(r, 0.5),
        }
    if r.random() < 0.15:
        spec["stream"] = {
            "release": r.choice(["prefix", "prefix", "passed"]),
            "leave_after": r.choice([None, None, None, 0, 2]),
        }
        spec["pieces"] = r.random() < 0.85
        streamed = [q for q in spec["requirements"] if q["kind"] == "streamed"]
        spec["requirements"] = (streamed or [requirement(r, "streamed")])[:1]
        spec["requirements"] += [requirement(r, "blue")] if r.random() < 0.2 else []
        if r.random() < 0.75:
            simple = {"kind": "first"}
            spec |= {"action": "text", "strategy_requirements": [], "selection": simple}
            spec |= {"schedule": None, "pieces": True, "mood": r.choice(["even", "rough"])}
            spec["concurrency_budget"] = max(3, spec["concurrency_budget"])
    if r.random() < 0.22:
        spec["leave"] = {
            "how": r.choice(["scope", "deadline", "native", "native", "native"]),
            "at": r.choice([seconds(r, 1.5), seconds(r, 1.5 * spec["slowest"])]),
            "again": seconds(r, 0.5) if r.random() < 0.3 else None,
        }


def selection(r: Random) -> Spec:
    return r.choice(
        [
            {"kind": "best", "n": r.randint(2, 4), "scorer": r.choice(["inline", "async"]),
             "threshold": r.choice([None, None, None, 2.0])},
            {"kind": "best", "n": 2, "scorer": "inline", "threshold": None},
            {"kind": "vote", "n": r.randint(2, 4), "confidence": None, "weight": None,
             "at_least": r.choice([0.6, 0.75, 1.0]), "key": True},
            {"kind": "vote", "n": r.randint(1, 6), "confidence": r.choice([None, 0.8, 0.95]),
             "weight": r.choice([None, None, "async"]), "at_least": r.choice([None, None, 0.6]),
             "key": r.random() < 0.8},
            {"kind": "collect", "k": r.randint(1, 4), "distinct": r.random() < 0.4,
             "ahead": r.choice([1, 1, 2])},
            {"kind": "consensus", "n": r.randint(2, 4)},
            {"kind": "tournament", "n": r.randint(2, 4), "judge": r.random() < 0.3,
             "rounds": r.choice(["knockout", "pivots"])},
            {"kind": "tournament", "n": 2, "judge": False, "rounds": "knockout"},
        ]
    )  # fmt: skip


def schedule(r: Random) -> Spec:
    usual = [seconds(r, 2.0) for _ in range(10)]
    return r.choice(
        [
            {"kind": "eager", "pool": r.random() < 0.7},
            {"kind": "staggered", "delay": seconds(r, 2.0)},
            {"kind": "hedged", "known": usual, "extra": r.randint(1, 2)},
            {"kind": "restart", "known": usual, "most": r.randint(1, 2),
             "inner": r.choice(["eager", "hedged"])},
            {"kind": "restart", "known": usual, "most": 2, "inner": "eager"},
            {"kind": "own", "first": r.randint(1, 2), "every": seconds(r, 1.5),
             "seconds": r.choice([None, None, 4.03125])},
        ]
    )  # fmt: skip


def act(r: Random) -> Spec:
    mode = r.choice(["sequential", "sequential", "observe", "background"])
    hook, what = r.choice(HOOKS), r.choice(DEEDS)
    if r.random() < 0.5:
        mode, (hook, what) = "sequential", r.choice(CHANGES)
    elif r.random() < 0.15:
        mode, what = "observe", "fail"
    return {
        "hook": hook,
        "mode": mode,
        "what": what,
        "share": r.choice([0.15, 0.5, 1.0, 1.0 if mode == "observe" else 0.5]),
        "delay": seconds(r, 0.6),
        "timeout": r.choice([5.0, 5.0, 0.25]),
        "priority": r.choice([10, 50, 50, 90]),
        "value": r.choice([1, 2, 3, 3, 4, 0, True, 100_000]),
    }


DEEDS = ["look", "look", "dawdle", "fail", "block", "wrong", "stray", "odd"]
CHANGES = [
    ("sampling_loop_start", "budget"),
    ("validation_pre_check", "require"),
    ("validation_post_check", "veto"),
    ("validation_post_check", "veto"),
    ("validation_post_check", "grant"),
    ("generation_pre_call", "options"),
]


# --- replies ----------------------------------------------------------------------------------


def reply(spec: Spec, name: str, mood: str, place: tuple[Any, ...]) -> Spec:
    """Choose the reply to a request for a draw."""
    r = Random(f"{spec['seed']} {name} {place}")
    shares = MOODS[mood]
    kind = r.choices(list(shares), list(shares.values()))[0]
    yes = "yes" if r.random() < YES.get(mood, 0.35) else "no"
    words = [yes, r.choice("abcd")]
    words += [w for w, share in WORDS.items() if r.random() < share]
    words += ["w"] * r.randint(0, 6)
    return {
        "kind": kind,
        "words": words,
        "n": r.choice([1, 2, 3, 3, 99]),
        "delay": latency(r, spec["latency"], spec["slowest"], spec["hangs"]),
        "manner": r.choice(MANNERS),
        "cleanup": seconds(r, 1.2),
        "after": r.choice([None, 0.5, 2.0, 500.0]),
        "pieces": r.randint(1, 5),
        "begins": r.random() < 0.6,
        "calls": r.random(),
        "metered": r.random() < 0.9,
    }


WORDS = {"blue": 0.75, "boom": 0.12, "slow": 0.15, "odd": 0.12, "stray": 0.12}


def verdict(spec: Spec, name: str, place: tuple[Any, ...]) -> Spec:
    """Choose the reply to a request for a verdict."""
    r = Random(f"{spec['seed']} judge {name} {place}")
    kind = r.choices(["pass", "fail", "garbled", "transient", "permanent"], [8, 4, 1, 1, 0.5])[0]
    return {
        "kind": kind,
        "better": r.choice("ab"),
        "delay": latency(r, spec["latency"], spec["judge_delay"], 0.0),
        "manner": "obey",
        "cleanup": 0.0,
    }


def latency(r: Random, kind: str, slowest: float, hangs: float) -> float | None:
    if r.random() < hangs:
        return None
    distinct = seconds(r, slowest)
    if kind == "distinct":
        return distinct
    return {"equal": 1.0, "zero": 0.0, "mixed": r.choice([0.0, 0.5, 1.0])}[kind]


def chance(spec: Spec, *place: Any) -> float:
    """A number from 0 to 1 that depends only on the call and a place in it."""
    return zlib.crc32(f"{spec['seed']} {place}".encode()) / 2**32
