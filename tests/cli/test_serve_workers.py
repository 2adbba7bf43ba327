"""``mellea-like serve``: reloaded configurations, and several processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import threading
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from command_line import run
from http_server import Answer, OpenAIServer
from leftovers import children, is_gone, wait_until
from serve_kit import KEY, ask, serving

CONFIG = """\
upstreams:
  main: {kind: openai, base_url: URL, model: big, api_key: "${MY_KEY}"}
models:
  short: {upstream: main, retries: 0}
  old: {upstream: main}
server: {port: 0, stop_seconds: 20}
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="it looks for processes in /proc"
)


@pytest.fixture
def config(tmp_path):
    return tmp_path / "gateway.yaml"


def models(url: str) -> list[str]:
    with httpx2.Client(timeout=20, trust_env=False) as client:
        return [model["id"] for model in client.get(f"{url}/models").json()["data"]]


def metrics(url: str) -> str:
    with httpx2.Client(timeout=20, trust_env=False) as client:
        return client.get(url.replace("/v1", "/metrics")).text


class Asking:
    """Requests in threads."""

    def __init__(self, url: str, count: int, **fields: str) -> None:
        self.answers: list[int] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(url, fields)) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str, fields: dict[str, str]) -> None:
        status = 0
        with contextlib.suppress(httpx2.HTTPError):
            status = ask(url, **fields).status_code
        self.answers.append(status)

    def join(self) -> list[int]:
        for thread in self._threads:
            thread.join(30)
        return self.answers


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_sighup_reads_the_configuration_again_and_drops_no_request(config, workers):
    release = threading.Event()
    with OpenAIServer(Answer("slow", until=release.is_set)) as upstream:
        text = CONFIG.replace("URL", upstream.url)
        config.write_text(text)
        with serving("-c", str(config), "--processes", workers, MY_KEY=KEY) as (process, url):
            asking = Asking(url, 4, model="old")
            wait_until(lambda: upstream.in_flight == 4)
            config.write_text(text.replace("  old:", "  new:").replace("seconds: 20", "seconds: 9"))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: [models(url) for _ in range(8)] == [["short", "new"]] * 8)
            release.set()
            assert asking.join() == [200] * 4
            config.write_text(text.replace("big", "[]").replace("upstream: main}", "attempts: 0}"))
            process.send_signal(signal.SIGHUP)
            said = ""
            while said.count("was not reloaded") < 2:
                said += process.stderr.readline()
            assert Asking(url, 4, model="new").join() == [200] * 4
            process.terminate()
            _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said.count("server has changed: restart the gateway") == 1
    mistakes = re.findall(r"ERROR the configuration was not reloaded: .+, line \d+: (\S+): ", said)
    assert sorted(mistakes) == ["models.old", "upstreams.main.model"]
    assert "Traceback" not in said + err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_under_nohup_a_sighup_reads_the_configuration_again_too(config, workers):
    text = "upstreams: {toy: {kind: markov}}\nmodels: {old: {upstream: toy}}\nserver: {port: 0}\n"
    config.write_text(text)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As nohup does; the command inherits it.
    try:
        with serving("-c", str(config), "--processes", workers) as (process, url):
            config.write_text(text.replace("old:", "new:"))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: [models(url) for _ in range(8)] == [["new"]] * 8)
            process.terminate()
            assert process.wait(30) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_workers_share_a_port_and_their_metrics_and_end_their_requests_at_a_stop(config):
    release = threading.Event()
    with OpenAIServer(Answer("slow", until=release.is_set)) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url))
        with serving("-c", str(config), "--processes", "2", MY_KEY=KEY) as (process, url):
            workers = children(process.pid)
            assert len(workers) == 2
            first = Asking(url, 12)
            wait_until(lambda: upstream.in_flight == 12)
            assert 'in_flight{key="anonymous"} 12.0' in metrics(url)
            release.set()
            assert first.join() == [200] * 12
            counted = 'requests_total{key="anonymous",model="short",status="200"} 12.0'
            wait_until(lambda: counted in metrics(url))
            assert 'in_flight{key="anonymous"} 0.0' in metrics(url)
            release.clear()
            last = Asking(url, 6)
            wait_until(lambda: upstream.in_flight == 6)
            # As a service manager does: it tells all of them.
            for pid in (process.pid, *workers):
                os.kill(pid, signal.SIGTERM)
            err = ""
            while "Stopping: " not in err:
                err += process.stderr.readline()
            release.set()
            out, rest = process.communicate(timeout=30)
            assert last.join() == [200] * 6
    assert (process.returncode, out) == (0, "")
    assert "Stopping: requests under way have up to 20 s; Ctrl-C again cuts them off.\n" in err
    who = set(re.findall(r"INFO (worker \d): POST", err + rest))
    assert who  # Which of them takes a connection is up to the system.
    assert who <= {"worker 1", "worker 2"}
    assert all(map(is_gone, workers))


def test_a_worker_that_dies_is_started_again(config):
    with OpenAIServer(Answer("fine")) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url))
        with serving("-c", str(config), "--processes", "2", "-q", MY_KEY=KEY) as (process, url):
            before = sorted(children(process.pid))
            for _ in range(5):
                assert ask(url).status_code == 200
            # A caller has its answer a moment before it is counted.
            counted = 'requests_total{key="anonymous",model="short",status="200"} '
            wait_until(lambda: f"{counted}5.0" in metrics(url))
            config.write_text("a file that nobody has asked to read: yet\n")
            os.kill(before[0], signal.SIGKILL)
            line = process.stderr.readline()
            assert re.search(
                r"ERROR worker 1 was killed by signal 9: it will be restarted in", line
            )
            assert ask(url).status_code == 200  # The other one goes on.
            wait_until(lambda: len(children(process.pid)) == 2)
            assert before[1] in children(process.pid)
            wait_until(lambda: f"{counted}6.0" in metrics(url))
            for _ in range(8):
                assert f"{counted}6.0" in metrics(url)
            process.terminate()
            _, err = process.communicate(timeout=30)
    # A worker may count the last request to /metrics as done a moment later.
    assert process.returncode == 0
    assert re.fullmatch(r"(Stopping: requests under way have up to .*\n)?", err), err


def test_workers_end_with_their_parent(config):
    with OpenAIServer(Answer("fine")) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url))
        with serving("-c", str(config), "--processes", "2", MY_KEY=KEY) as (process, _):
            workers = children(process.pid)
            process.kill()
            wait_until(lambda: all(map(is_gone, workers)))


def test_a_second_signal_cuts_off_what_workers_do(config):
    with OpenAIServer(Answer("slow", seconds=60)) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url))
        with serving("-c", str(config), "--processes", "2", "-q", MY_KEY=KEY) as (process, url):
            asking = Asking(url, 4)
            wait_until(lambda: upstream.in_flight == 4)
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline().startswith("Stopping: requests under way")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=15)
            assert asking.join() == [0] * 4
        wait_until(lambda: upstream.in_flight == 0)
    assert (process.returncode, err) == (0, "")


# --- what keys have spent ------------------------------------------------------------------------

TOKEN = "a-token-for-tests-0123456789"
KEYS = f"""\
keys:
  team:
    sha256: {hashlib.sha256(TOKEN.encode()).hexdigest()}
    budget: {{caller_requests: 10}}
"""


def ask_as_team(url: str, count: int) -> Counter[int]:
    """Make requests, each on a new connection; count the answers by status."""
    body = {"model": "short", "messages": [{"role": "user", "content": "Say something."}]}
    headers = {"authorization": f"Bearer {TOKEN}"}
    found = Counter[int]()
    for _ in range(count):
        with httpx2.Client(timeout=20, trust_env=False) as client:
            answer = client.post(f"{url}/chat/completions", json=body, headers=headers)
            found[answer.status_code] += 1
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_key_that_is_spent_stays_so_over_a_restart_and_in_all_workers(config, workers):
    with OpenAIServer(Answer("fine")) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url) + KEYS)
        for count, expected in ((7, {200: 7}), (7, {200: 3, 429: 4}), (3, {429: 3})):
            with serving("-c", str(config), "--processes", workers, MY_KEY=KEY) as (process, url):
                assert ask_as_team(url, count) == expected
                process.terminate()
                _, err = process.communicate(timeout=30)
            store = config.with_name("gateway.spent.db")
            assert f"INFO the keys' spending is kept in {store}\n" in err
            assert store.stat().st_mode & 0o777 == 0o600
    assert len(upstream.requests) == 10


def test_the_store_may_be_elsewhere_or_in_memory(config):
    elsewhere = config.parent / "state"
    elsewhere.mkdir()
    with OpenAIServer(Answer("fine")) as upstream:
        text = CONFIG.replace("URL", upstream.url) + KEYS
        for store, warned in (("state/spent.db", False), ("memory", True)):
            config.write_text(f"{text}store: {store}\n")
            with serving("-c", str(config), "--processes", "2", MY_KEY=KEY) as (process, url):
                assert ask_as_team(url, 5) == {200: 5}
                process.terminate()
                _, err = process.communicate(timeout=30)
            assert ("each worker separately counts what keys spend" in err) is warned
    assert sorted(file.name for file in config.parent.iterdir()) == ["gateway.yaml", "state"]
    assert "spent.db" in {file.name for file in elsewhere.iterdir()}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_store_that_can_not_be_made_is_named_at_the_start(config, workers):
    config.write_text(
        CONFIG.replace("URL", "http://127.0.0.1:9/v1") + KEYS + "store: no/spent.db\n"
    )
    done = run("serve", "-c", str(config), "--processes", workers, MY_KEY=KEY)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no/spent.db" in done.stderr
    assert "store: memory" in done.stderr


def test_without_anything_to_keep_there_is_no_file(config):
    with OpenAIServer(Answer("fine")) as upstream:
        config.write_text(CONFIG.replace("URL", upstream.url))
        with serving("-c", str(config), "--processes", "2", MY_KEY=KEY) as (_, url):
            assert ask(url).status_code == 200
    assert [file.name for file in config.parent.iterdir()] == ["gateway.yaml"]
