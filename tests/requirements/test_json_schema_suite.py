"""`json_schema` agrees with the JSON-Schema-Test-Suite; ``nox -s data`` fetches it."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_kit import verdict

from mellea_like.core.validation import Verdict
from mellea_like.requirements.checks import json_schema

SUITE = Path(os.environ.get("JSON_SCHEMA_SUITE", "/nonexistent"))
if not SUITE.is_dir():
    pytest.skip("JSON_SCHEMA_SUITE names no directory", allow_module_level=True)

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}

DIFFERENT = {
    "format.json": "formats are checked here, and the drafts leave that open",
    "vocabulary.json": "a document of the schema's own says which keywords count; it isn't fetched",
    "optional/content.json": "contentEncoding and contentMediaType are annotations here",
    "optional/dependencies-compatibility.json": "a keyword of older drafts",
    "optional/ecmascript-regex.json": "patterns are in the dialect of the package regex",
    "optional/format/date-time.json": "leap seconds are refused",
    "optional/format/ecmascript-regex.json": "patterns are in the dialect of the package regex",
    "optional/format/email.json": "an address is anything with an @",
    "optional/format/time.json": "leap seconds are refused",
}
"""The files of the suite with differing verdicts, and the reasons."""

ELSEWHERE = {"dynamicRef.json", "optional/cross-draft.json", "refRemote.json", "vocabulary.json"}
"""The files with references to documents that would have to be fetched."""


def cases(draft: str) -> list[tuple[str, str, dict[str, Any], list[dict[str, Any]]]]:
    found = []
    for path in sorted((SUITE / "tests" / draft).rglob("*.json")):
        name = path.relative_to(SUITE / "tests" / draft).as_posix()
        for case in json.loads(path.read_text("utf-8")):
            schema = case["schema"]
            if isinstance(schema, bool):
                schema = {"allOf": [schema]}
            whole = {"$schema": DRAFTS[draft], **schema}
            found.append((name, case["description"], whole, case["tests"]))
    return found


@pytest.mark.allow_blocking  # It reads files.
@pytest.mark.parametrize("draft", DRAFTS)
def test_each_verdict_is_that_of_the_suite(draft, caplog):
    caplog.set_level(logging.ERROR)  # Keywords that are in no draft cause warnings.
    asked: Counter[str] = Counter()
    wrong = []
    for file, about, schema, tests in cases(draft):
        try:
            check = json_schema(schema, early=True)
        except ValueError as exc:
            if file in ELSEWHERE and "can't be resolved" in str(exc):
                continue
            if file in DIFFERENT and "is not a 'regex'" in str(exc):
                continue
            raise
        for test in tests:
            text = json.dumps(test["data"])
            passed = verdict(check, text).passed
            asked[file] += 1
            if passed != test["valid"]:
                wrong.append((file, about, test["description"]))
            # A text that passes is never rejected early, no matter how it is cut.
            if passed and (place := ended_at(check, text)) is not None:
                wrong.append((file, about, f"{test['description']}: ended at {place} of {text}"))
    assert asked.total() > 800
    assert [told for told in wrong if told[0] not in DIFFERENT] == []


def ended_at(check: Any, text: str) -> int | None:
    """Return the number of characters after which a stream check rejects a text, if any."""
    look = copy.deepcopy(check.stream)
    for end in range(1, len(text) + 1):
        answer = look(text[:end], text[end - 1 : end])
        if answer is not Verdict.UNKNOWN and answer[0] is Verdict.FAIL:
            return end
    return None
