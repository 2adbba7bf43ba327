"""``mellea-like serve``, in another process."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading

import httpx2
import pytest
from command_line import run
from http_server import Answer, OpenAIServer
from leftovers import wait_until
from serve_kit import CONFIG, KEY, TOY, ask, serving


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "gateway.yaml"

    def write(text: str) -> str:
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(config, number):
    with OpenAIServer(Answer("one two three four"), Answer("one two")) as upstream:
        path = config(CONFIG.replace("URL", upstream.url))
        with serving("--config", path, MY_KEY=KEY) as (process, url):
            assert url.startswith("http://127.0.0.1:")
            answer = ask(url)
            assert answer.json()["choices"][0]["message"]["content"] == "one two"
            ask(f"{url}/secret-path")
            ask(url, model="secret-model")
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "POST /v1/chat/completions, model short: answered 200 to key anonymous" in err
    assert "POST other, model short: answered 404" in err
    assert "model other: answered 404" in err
    assert "secret" not in err
    assert "Traceback" not in err


def test_quiet_says_nothing_of_requests(config):
    with serving("-c", config(TOY), "--port", "0", "--quiet") as (process, url):
        assert ask(url, model="mine").status_code == 200
        process.terminate()
        _, err = process.communicate(timeout=30)
    # The client may have its answer a moment before the server is done with the request.
    assert [line for line in err.splitlines() if not line.startswith("Stopping: 1 request")] == []


def test_a_request_under_way_ends_before_it_stops(config):
    release = threading.Event()
    with OpenAIServer(Answer("one two", until=release.is_set)) as upstream:
        path = config(
            CONFIG.replace("URL", upstream.url).replace("stop_seconds: 1", "stop_seconds: 9")
        )
        with serving("-c", path, MY_KEY=KEY) as (process, url):
            answers: list[httpx2.Response] = []
            thread = threading.Thread(target=lambda: answers.append(ask(url)))
            thread.start()
            wait_until(lambda: upstream.in_flight)
            process.terminate()
            assert process.stderr.readline().startswith("Stopping: 1 request")
            release.set()
            thread.join(30)
            assert process.wait(30) == 0
    assert [answer.status_code for answer in answers] == [200]


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_says_what_it_waits_for_and_a_second_one_cuts_it_off(config, signals):
    with OpenAIServer(Answer("one two", seconds=60)) as upstream:
        text = CONFIG.replace("URL", upstream.url)
        path = config(text.replace("stop_seconds: 1", "stop_seconds: 30") if signals > 1 else text)
        with serving("-c", path, MY_KEY=KEY) as (process, url):

            def call() -> None:
                with contextlib.suppress(httpx2.HTTPError):
                    ask(url)

            thread = threading.Thread(target=call)
            thread.start()
            wait_until(lambda: upstream.in_flight)
            process.send_signal(signal.SIGINT)
            said = process.stderr.readline()
            if signals > 1:
                process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=15)
            thread.join(30)
        wait_until(lambda: not upstream.in_flight)
    seconds = 30 if signals > 1 else 1
    assert said == (
        f"Stopping: 1 request under way has up to {seconds} s; Ctrl-C again cuts it off.\n"
    )
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "ERROR" not in err


def test_check_looks_and_opens_nothing(config, command, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    path = config(CONFIG.replace("URL", "http://127.0.0.1:9/v1"))
    said = f"{path} is valid; its models: short, other\n"
    assert command("serve", "-c", path, "--check") == (0, said, "")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TOY.replace("markov", "openai, model: m"), (), 'write api_key: "${OPENAI_API_KEY}"'),
        (TOY.replace("markov", "python, backend: 'no_such:b'"), (), "no_such:b can't be imported"),
        (TOY.replace("markov", "python, backend: 'math:pi'"), (), "math:pi is neither a"),
        (TOY, ("--host", "0.0.0.0"), "can be reached from other machines"),
        (TOY, ("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (TOY + "keys: {a: {env: NOT_SET}}\n", (), "NOT_SET"),
        (TOY + "modles: {}\n", (), "there is no 'modles'; did you mean models?"),
        (TOY.replace("markov", "llama, gguf: no.gguf"), (), "no.gguf"),
        (CONFIG, (), "line 2: upstreams.main.api_key: the environment variable MY_KEY is not set"),
    ],
)
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_what_can_not_be_used_is_said_in_a_sentence(config, command, text, arguments, said, check):
    code, out, err = command("serve", "-c", config(text), *arguments, *check)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_named(config, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = command("serve", "-c", config(TOY), "--port", str(port))
    assert code == 3
    assert f"can't listen on 127.0.0.1, port {port}: Address already in use" in err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_upstream_that_does_not_open_is_named(config, tmp_path, workers):
    # In a process of its own, for it has set up its log by then.
    (tmp_path / "no.gguf").write_bytes(b"this is no model")
    text = "upstreams: {toy: {kind: llama, gguf: no.gguf}}\nmodels: {mine: {upstream: toy}}\n"
    done = run("serve", "-c", config(text), "--port", "0", "--processes", workers)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no.gguf" in done.stderr
    assert "Traceback" not in done.stderr
