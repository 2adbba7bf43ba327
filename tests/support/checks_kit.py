"""Asking a ready-made check about a text."""

from __future__ import annotations

from typing import Any

from mellea_like import Candidate, Context, Generation, Instruction, Requirement, ValidationResult


def candidate(text: str, value: Any = None) -> Candidate:
    value = text if value is None else value
    return Candidate(text, value, Generation(text), Context(), Instruction("x"))


def verdict(check: Requirement, text: str, value: Any = None) -> ValidationResult:
    return check.validator(candidate(text, value))  # type: ignore[misc,return-value]
