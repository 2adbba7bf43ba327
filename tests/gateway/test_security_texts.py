"""Texts of models, callers and upstreams in headers, logs, event streams, errors and metrics."""

from __future__ import annotations

import asyncio
import gc
import json
import logging

import anyio
import pytest
from gateway_kit import config_for, running, user
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.backends import FunctionBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    LimitExceeded,
    MalformedResponse,
    RateLimited,
)
from mellea_like.gateway.chat.endpoint import event_of
from mellea_like.gateway.metrics import Metrics
from mellea_like.gateway.redaction import RedactedBackend, redacted, redacted_logs
from mellea_like.gateway.refusal import Refusal, too_many
from mellea_like.runtime.logs import inform, warn

HOSTILE = [
    "a\r\nSet-Cookie: evil=1",
    "a\nb",
    "a\rb",
    "a\x00b",
    "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e",
    "a\n\ndata: [DONE]\n\n",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe",
    "\ud800",
    "\U0001f600" * 3,
    "",
    "   ",
    "\\n",
    "x" * 10_000,
]
texts = st.text(st.characters(), max_size=300) | st.sampled_from(HOSTILE)


@given(texts)
def test_a_frame_of_an_event_stream_is_one_frame(text):
    data = {"choices": [{"delta": {"content": text}}], text: 1}
    written = event_of(data)
    assert written.isascii()
    assert written.endswith(b"\n\n")
    lines = written.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["data", ""]
    assert json.loads(lines[0].removeprefix("data: ")) == data


@given(texts, texts)
def test_an_error_s_body_can_t_be_forged(message, value):
    refusal = Refusal(400, message, param=value)
    assert dict(refusal.raw_headers())[b"content-length"] == str(len(refusal.body())).encode()
    error = json.loads(refusal.body())["error"]
    assert (error["message"], error["param"]) == (message, value)


def test_retry_after_is_in_whole_seconds():
    assert too_many("x", 0.2).headers == {"retry-after": "1"}
    assert too_many("x", 1.2).headers == {"retry-after": "2"}


# --- what upstreams say --------------------------------------------------------------------------

CANARY = "canary-in-a-text"
ERRORS = [
    RateLimited(CANARY, status=429, retry_after=3.0),
    RateLimited(CANARY, status=429, retryable=False),
    BackendUnavailable(CANARY, status=503),
    AuthenticationFailed(CANARY, status=401),
    InvalidRequest(CANARY, status=400),
    MalformedResponse(CANARY),
    type("Own", (InvalidRequest,), {})(CANARY, status=418),
    BackendError(CANARY),
    KeyError(CANARY),
    ExceptionGroup(CANARY, [ValueError(CANARY)]),
]


class Failing:
    """A backend that fails on entry, between its pieces, or on exit."""

    def __init__(self, error: Exception, where: str = "generate") -> None:
        self.error = error
        self.where = where

    async def generate(self, request: Request) -> Generation:
        raise self.error

    def stream(self, request: Request):
        from contextlib import asynccontextmanager

        async def pieces():
            yield "a"
            if self.where == "pieces":
                raise self.error
            yield Generation("a")

        @asynccontextmanager
        async def streamed():
            if self.where == "entering":
                raise self.error
            yield pieces()
            if self.where == "leaving":
                raise self.error

        return streamed()


REQUEST = Request((Message("user", "x"),))


def texts_of(error: BaseException | None) -> str:
    if error is None:
        return ""
    shown = f"{error!r} {error} {getattr(error, '__notes__', '')}"
    cause = error.__cause__ if error.__suppress_context__ else error.__context__
    return shown + texts_of(error.__cause__) + texts_of(cause)


@pytest.mark.anyio
@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("where", ["generate", "entering", "pieces", "leaving"])
async def test_an_upstream_s_error_keeps_its_class_and_numbers_but_not_its_text(error, where):
    backend = RedactedBackend(Failing(error, where), "main")
    with pytest.raises(BackendError) as caught:
        if where == "generate":
            await backend.generate(REQUEST)
        else:
            async with backend.stream(REQUEST) as pieces:
                async for _ in pieces:
                    pass
    told = caught.value
    assert CANARY not in texts_of(told)
    assert "'main'" in str(told)
    if isinstance(error, BackendError):
        assert isinstance(error, type(told))
        assert type(told) is not BackendError or type(error) is BackendError
        for name in ("status", "retryable", "retry_after"):
            assert getattr(told, name) == getattr(error, name)


@pytest.mark.anyio
async def test_what_this_library_says_on_its_own_account_is_passed_on():
    error = LimitExceeded("a budget is spent")
    error.__cause__ = KeyError("why")
    with pytest.raises(LimitExceeded) as caught:
        await RedactedBackend(Failing(error), "main").generate(REQUEST)
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    assert redacted(error, "main") is error


@pytest.mark.anyio
async def test_what_the_reader_of_a_stream_raises_is_passed_on():
    backend = RedactedBackend(Failing(KeyError("never")), "main")
    with pytest.raises(ZeroDivisionError) as caught:
        async with backend.stream(REQUEST) as pieces:
            async for _ in pieces:
                raise ZeroDivisionError
    assert type(caught.value) is ZeroDivisionError


@pytest.mark.anyio
async def test_a_cancelled_request_is_no_error():
    class Slow(Failing):
        async def generate(self, request: Request) -> Generation:
            await anyio.sleep_forever()
            raise AssertionError

    with anyio.move_on_after(0) as scope:
        await RedactedBackend(Slow(KeyError()), "main").generate(REQUEST)
    assert scope.cancelled_caught


# --- logs ----------------------------------------------------------------------------------------


def test_what_others_log_loses_its_texts_at_any_level(caplog):
    caplog.set_level(0)
    with redacted_logs(), redacted_logs():
        for name in ("openai", "openai._base_client", "httpx2", "httpcore2.http11", "httpx"):
            logging.getLogger(name).setLevel(logging.DEBUG)
            logging.getLogger(name).debug("request %s", CANARY)
            logging.getLogger(name).info(CANARY)
            logging.getLogger(name).warning("it is broken")
            logging.getLogger(name).warning("there was <%s> in %s", CANARY, CANARY)
            logging.getLogger(name).setLevel(logging.NOTSET)
        try:
            raise KeyError(CANARY)
        except KeyError as exc:
            logging.getLogger("uvicorn.error").exception("it failed")
            warn("error in attempt 3: %s: %s", type(exc).__name__, exc)
            warn("requirement %r was abandoned: %s", CANARY, f"so {CANARY}", exc_info_=1)
            inform("it took %g s", 1.5)
            context = {"message": "nobody caught", "exception": exc, "future": [CANARY]}
            with asyncio.Runner() as runner:
                runner.get_loop().call_exception_handler(context)
            slow = f"<TimerHandle call({CANARY!r})>"
            logging.getLogger("asyncio").warning("Executing %s took %.3f seconds", slow, 1.0)
            logging.getLogger("mellea_like").info("gave %(up)s", {"up": CANARY})
            logging.getLogger("mellea_like").info("call %s", "1a2b3c4d")
            logging.getLogger("mellea_like").info("plain", exc_info=exc, stack_info=True)
        warn("%s: %s", "RateLimited", RateLimited("the upstream 'main' asks for fewer"))
    assert CANARY not in caplog.text
    for kept in (
        "it is broken",
        "there was",
        "it failed",
        "nobody caught",
        "Executing",
        "error in attempt 3: KeyError: ***",
        "requirement '***' was abandoned: ***",
        "it took 1.5 s",
        "call 1a2b3c4d",
        "RateLimited: the upstream 'main' asks for fewer",
    ):
        assert kept in caplog.text


def test_afterwards_logs_are_as_they_were(caplog):
    caplog.set_level(logging.DEBUG)
    factory = logging.getLogRecordFactory()
    with redacted_logs(), redacted_logs():
        logging.getLogger("of.someone.else").warning("of %s", CANARY)
    assert CANARY in caplog.text
    assert logging.getLogRecordFactory() is factory
    logging.getLogger("openai").debug("again")
    assert "again" in caplog.text


def test_a_gateway_in_someone_s_program_leaves_its_logs_and_its_collector_alone():
    names = ["openai", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access", "mellea_like"]

    def state() -> object:
        loggers = [logging.getLogger(name) for name in names]
        shown = [(x.level, x.propagate, list(x.handlers), list(x.filters)) for x in loggers]
        return shown, gc.get_threshold(), logging.getLogRecordFactory()

    before = state()
    backends = {"main": FunctionBackend(lambda _: "a", inline=True)}
    with running(config_for(), backends=backends, quiet=False) as gateway:
        with gateway.client() as client:
            client.chat.completions.create(model="mine", messages=user())
        assert state() == before


# --- metrics -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(texts, st.sampled_from([None, "team"]), st.integers(-5, 999))))
def test_labels_are_names_of_the_configuration_and_nothing_else(requests):
    metrics = Metrics(["haiku"])
    odd = [(model, None, 200) for model in (None, 7, ["haiku"], {"a": 1})]
    for model, key, status in [*requests, *odd, ("haiku", "team", 200)]:
        metrics.requested(model, key, status, 0.1)
    labels = {
        (name, value)
        for family in metrics.registry.collect()
        for sample in family.samples
        for name, value in sample.labels.items()
        if name in {"model", "key"}
    }
    assert {value for name, value in labels if name == "model"} <= {"haiku", "other"}
    assert {value for name, value in labels if name == "key"} <= {"team", "other"}
