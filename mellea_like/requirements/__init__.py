"""Ready-made checks (`mellea_like.requirements.checks`), the judge, and running all checks."""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.requirements.checks_common import CheckSettings
    from mellea_like.requirements.expressions import (
        CHECK_FORMS,
        CODE_FORMS,
        is_code_check,
        parse_check,
    )

__all__ = ["CHECK_FORMS", "CODE_FORMS", "CheckSettings", "is_code_check", "parse_check"]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.requirements.checks_common": "CheckSettings",
        "mellea_like.requirements.expressions": "CHECK_FORMS CODE_FORMS is_code_check parse_check",
    },
)
