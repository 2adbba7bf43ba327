"""The names of span attributes and metrics.

Names that begin with ``gen_ai`` follow the GenAI semantic conventions
(https://opentelemetry.io/docs/specs/semconv/gen-ai/, status: development). They are copied here
instead of imported, because they have moved between packages.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "mellea_like"

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 (no password)
SLICES: Final = "mellea_like.slices"
REQUIREMENT_FAILURES: Final = "mellea_like.requirement.failures"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STOP: Final = "gen_ai.request.stop_sequences"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 (no password)
ERROR_TYPE: Final = "error.type"

# OpenInference (https://github.com/Arize-ai/openinference/tree/main/spec), which viewers use to
# list calls.
SPAN_KIND: Final = "openinference.span.kind"
INPUT_VALUE: Final = "input.value"
OUTPUT_VALUE: Final = "output.value"

SAMPLING_ID: Final = "mellea_like.sampling_id"
ITERATION: Final = "mellea_like.iteration"
SUBSAMPLE: Final = "mellea_like.subsample"
DEPTH: Final = "mellea_like.depth"
OUTCOME: Final = "mellea_like.outcome"
WINNER: Final = "mellea_like.winner"
REQUESTS: Final = "mellea_like.requests"
ALL_INPUT_TOKENS: Final = "mellea_like.input_tokens"
ALL_OUTPUT_TOKENS: Final = "mellea_like.output_tokens"
COST: Final = "mellea_like.cost"
CURRENCY: Final = "mellea_like.currency"
STOP_REASON: Final = "mellea_like.stop_reason"
SUCCESS: Final = "mellea_like.success"
DECISION_KIND: Final = "mellea_like.decision.kind"
DECISION_REASON: Final = "mellea_like.decision.reason"
PURPOSE: Final = "mellea_like.purpose"
CACHE_HIT: Final = "mellea_like.cache_hit"
RETRY: Final = "mellea_like.retry"
STRATEGY: Final = "mellea_like.strategy"
REQUIREMENT: Final = "mellea_like.requirement"
FAILED_REQUIREMENTS: Final = "mellea_like.failed_requirements"
SESSION: Final = "mellea_like.session"
SESSION_ID: Final = "session.id"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
RUN_ID: Final = "mellea_like.run_id"
MESSAGES: Final = "mellea_like.messages"

BATCH_ID: Final = "mellea_like.batch_id"
BATCH_SIZE: Final = "mellea_like.batch_size"

# The bucket boundaries that the conventions recommend, in seconds and in tokens.
DURATION_BUCKETS: Final = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
]  # fmt: skip
TOKEN_BUCKETS: Final = [
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
]  # fmt: skip
