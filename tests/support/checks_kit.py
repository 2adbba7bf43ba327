"""Asking a ready-made check about a text."""

from __future__ import annotations

from typing import Any

from engine_kit import candidate

from mellea_like import Requirement, ValidationResult


def verdict(check: Requirement, text: str, **more: Any) -> ValidationResult:
    return check.validator(candidate(text, **more))  # type: ignore[misc,return-value]
