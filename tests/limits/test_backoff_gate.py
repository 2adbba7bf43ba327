"""One gate for each backend and key: when one request is told to wait, all others wait too."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest
from limiter_kit import ask

from mellea_like import Generation, OpenAIBackend, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.core import Usage
from mellea_like.core.backend import BackendWrapper
from mellea_like.errors import BackendUnavailable, RateLimited
from mellea_like.limits import BackoffGate, Retry, RetryBackend, gate_of
from mellea_like.limits import backoff_gate as module
from mellea_like.limits.backoff_gate import JITTER

# --- waiting --------------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio

POLICY = Retry()


async def test_all_wait_and_do_not_arrive_at_once(virtual_clock):
    gate = BackoffGate()
    gate.close(10)
    arrived: list[float] = []

    async def one() -> None:
        await gate.wait(ask(), POLICY)
        arrived.append(virtual_clock.now)

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(one)
        await anyio.sleep(1)
        assert gate.statistics().waiting == 50
    assert 10 <= min(arrived) < max(arrived) <= 11
    assert len(set(arrived)) == 50
    assert gate.statistics().waiting == 0


async def test_nothing_is_left_of_its_trouble_after_the_next_answer(virtual_clock):
    """Then requests need not ask it any more, as before its first trouble."""
    gate = BackoffGate()

    def trouble():
        return gate.opens is not None, gate.breaker.failures

    assert trouble() == (False, 0)
    gate.heard(BackendUnavailable("gone"), POLICY)
    assert (trouble(), gate.closed) == ((False, 1), False)
    gate.answered(anyio.current_time())
    assert trouble() == (False, 0)
    gate.close(10)
    gate.answered(anyio.current_time())  # Of a request that was under way.
    assert (trouble(), gate.closed) == ((True, 0), True)
    await anyio.sleep(11)
    await gate.send(ScriptedBackend(["good"]).generate, ask(), POLICY)
    assert trouble() == (False, 0)


async def test_a_wait_beyond_the_deadline_is_not_begun(virtual_clock):
    gate = BackoffGate()
    gate.close(10)
    request = ask(deadline=5)
    with pytest.raises(RateLimited, match="come back in 10 s; the call's time is up in 5 s") as e:
        await gate.wait(request, POLICY)
    assert (e.value.status, e.value.retryable, e.value.retry_after) == (429, False, 10)
    assert virtual_clock.now == 0
    assert request.meter.started
    assert request.meter.usage == Usage()


async def test_a_waiter_gives_up_when_the_wait_becomes_too_long(virtual_clock):
    gate = BackoffGate()
    gate.close(10)

    async def wait() -> None:
        with pytest.raises(RateLimited) as caught:
            await gate.wait(ask(), POLICY)
        assert 10 <= virtual_clock.now <= 11
        assert caught.value.retry_after == pytest.approx(995, abs=1.1)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(5)
        gate.close(120, told=1000)


# --- the gate and the retries together ------------------------------------------------------------


class Server:
    """Refuses whatever comes before a time; the error says how long to stay away."""

    def __init__(self, until: float, *, tell: bool, kind=RateLimited) -> None:
        self.until = until
        self.tell = tell
        self.kind = kind
        self.came: list[float] = []

    async def generate(self, request: Request) -> Generation:
        now = anyio.current_time()
        self.came.append(now)
        await anyio.sleep(0.1)
        if now < self.until:
            left = self.until - anyio.current_time()
            raise self.kind("later", retry_after=left if self.tell else None)
        return Generation("good")


async def ten_more_after(seconds: float, backend: RetryBackend) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(backend.generate, ask())
        await anyio.sleep(seconds)
        for _ in range(10):
            group.start_soon(backend.generate, ask())


@pytest.mark.parametrize("kind", [RateLimited, BackendUnavailable])
async def test_when_one_is_told_to_wait_all_others_wait(virtual_clock, kind):
    server = Server(30, tell=True, kind=kind)
    # Two wrappers, one server: what one learns, the other obeys.
    gate_of(BackendWrapper(server))
    await ten_more_after(1, RetryBackend(BackendWrapper(server)))
    assert len(server.came) == 12
    assert [came for came in server.came if came < 30] == [0]


async def test_a_refusal_without_a_time_has_all_others_wait_too(virtual_clock):
    server = Server(0.05, tell=False)
    backend = RetryBackend(server, Retry(initial=8))
    gate = gate_of(server)
    async with anyio.create_task_group() as group:
        group.start_soon(backend.generate, ask())
        await anyio.sleep(0.11)
        JITTER.seed(0)
        opens = 0.1 + 8 * JITTER.random()
        assert gate.closed
        group.start_soon(backend.generate, ask())
    assert len(server.came) == 3
    refused, other = sorted(server.came[1:])
    assert refused == pytest.approx(opens)
    assert opens <= other <= opens + 0.1 * (opens - 0.1) + 1e-9


@pytest.mark.parametrize("seconds", [None, 30])
@pytest.mark.parametrize("policy", [Retry(), Retry(rate_limit_attempts=1)])
async def test_all_others_also_wait_after_a_refusal_without_a_further_try(
    virtual_clock, policy, seconds
):
    backend = ScriptedBackend([RateLimited("later", retry_after=seconds)], cycle=True)
    with pytest.raises(RateLimited):
        await RetryBackend(backend, policy).generate(ask(deadline=1e-9))
    assert len(backend.requests) == 1
    assert gate_of(backend).closed


async def test_a_retry_that_may_not_wait_at_the_gate_says_when_to_come_back(virtual_clock):
    server = Server(0.05, tell=False, kind=BackendUnavailable)
    request = ask(deadline=20)

    async def one() -> None:
        with pytest.raises(RateLimited, match="come back in") as caught:
            await RetryBackend(server).generate(request)
        assert caught.value.retryable is False
        assert request.meter.usage.requests == 1

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        await anyio.sleep(0.1)
        gate_of(server).close(50)
    assert len(server.came) == 1


async def test_beyond_the_cap_all_fail_now_and_after_the_cap_the_server_is_asked_again(
    virtual_clock,
):
    server = Server(119, tell=True)
    server.kind = lambda text, retry_after: RateLimited(text, retry_after=3600)
    backend = RetryBackend(server)
    told = ["later", "Server asked for a pause", "Server asked for a pause"]
    for said in told:
        with pytest.raises(RateLimited, match=said) as caught:
            await backend.generate(ask())
        assert caught.value.retry_after == pytest.approx(3600)
    assert (len(server.came), virtual_clock.now) == (1, 0.1)
    await anyio.sleep(120)
    assert (await backend.generate(ask())).text == "good"


# --- which gate -----------------------------------------------------------------------------------


class Equal:
    """Equal to all of its kind, and not hashable."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, Equal)

    async def generate(self, request):
        raise NotImplementedError


class Slotted:
    __slots__ = ("limit_key",)

    async def generate(self, request):
        raise NotImplementedError


def test_a_backend_that_can_not_be_referenced_weakly_works_too():
    backend = Slotted()
    assert gate_of(backend) is not gate_of(backend)
    backend.limit_key = "shared"
    gate = gate_of(backend)
    assert gate_of(backend) is gate


def test_equal_keys_share_a_gate_and_unhashable_ones_do_not():
    def keyed(key):
        backend = Equal()
        backend.limit_key = key
        return backend

    assert gate_of(Equal()) is not gate_of(Equal())
    one, two, three = keyed(("url", "k")), keyed(("url", "k")), keyed(("url", "other"))
    assert gate_of(one) is gate_of(two)
    assert gate_of(one) is not gate_of(three)
    four = keyed(["no", "hash"])
    assert gate_of(four) is gate_of(four)
    assert gate_of(four) is not gate_of(keyed(["no", "hash"]))


def test_a_gate_goes_with_its_backend():
    gc.disable()  # It stays in the youngest generation, which is collected at once.
    backend = Equal()
    backend.limit_key = "gone soon"
    backend.cycle = backend
    gate, entry = weakref.ref(gate_of(backend)), id(backend)
    assert entry in module._by_backend
    assert "gone soon" in module._by_key
    del backend
    gc.collect(0)
    gc.enable()
    assert gate() is None
    assert entry not in module._by_backend
    assert "gone soon" not in module._by_key


# --- the key of an OpenAI backend -----------------------------------------------------------------

URL = "https://llm.example/v1"


def test_no_key_shows_in_a_limit_key():
    backend = OpenAIBackend("a", base_url=f"https://me:pass@{URL[8:]}", api_key="sk-secret-one")
    shown = repr(backend.limit_key)
    assert URL in shown
    assert "secret" not in shown
    assert "pass" not in shown


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [({}, {}), ({"OPENAI_BASE_URL": "http://["}, {}), ({}, {"base_url": URL, "api_key": "a b"})],
)
def test_where_there_is_no_valid_key_there_is_no_limit_key(monkeypatch, variables, arguments):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    backend = OpenAIBackend("a", **arguments)
    assert backend.limit_key is None
    assert gate_of(backend) is gate_of(backend)


async def test_the_key_of_a_given_client_counts_too():
    openai = pytest.importorskip("openai")

    async def fetch() -> str:
        return "sk-secret-one"

    ours = OpenAIBackend("a", base_url=URL + "/", api_key="sk-secret-one")
    async with (
        openai.AsyncOpenAI(base_url=URL, api_key="sk-secret-one") as given,
        openai.AsyncOpenAI(base_url=URL, api_key=fetch) as fetching,
    ):
        assert gate_of(OpenAIBackend("a", client=given)) is gate_of(ours)
        assert OpenAIBackend("a", client=fetching).limit_key is None
