"""``mellea-like batch --batch-api``: the commands of the how-to page, with a fake provider."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from pathlib import Path

import docs_pages
import pytest
from command_line import environment, run, start
from jobs_server import jobs_server

from mellea_like.batch import read_items, read_run
from mellea_like.cli.exit_codes import Problem
from mellea_like.cli.jobs import JobsUpstream, api_at

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "batch-api.md"
ROWS = 12

pytestmark = pytest.mark.timeout(120)


def command_of_page(name: str) -> list[str]:
    """Return one of the page's commands, with further arguments that a test needs."""
    for block in docs_pages.blocks_of(PAGE):
        if block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line)
                if words[1 : 1 + len(name.split())] == name.split():
                    return words[1:]
    pytest.fail(f"the page has no command {name}")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    rows = [{"question": f"Question {n}?"} for n in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    tmp_path.joinpath("questions.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(url: str) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": url,
        "MISTRAL_API_KEY": "sk-test",
    }


def spent(journal: Path) -> tuple[int, int]:
    """Return a run's requests and their cost in nano-dollars, at half the prices 2 and 8."""
    found = [item["usage"] for item in read_items(journal)]
    sent, received = (sum(u[name] for u in found) for name in ("input_tokens", "output_tokens"))
    return sum(u["requests"] for u in found), sent * 1000 + received * 4000


def test_the_page_leads_from_a_file_to_data_and_a_report(place):
    with jobs_server("openai", place / "server.db", speed=300, pass_rate=0.5) as server:
        batch = [*command_of_page("batch questions.jsonl"), "--poll", "0.05"]
        started = start(*batch, env=environment(**keys(server.url)))
        while not server.ask("jobs"):
            time.sleep(0.05)
        started.kill()
        started.communicate()
        told = run(*command_of_page("batch status"), **keys(server.url))
        assert told.returncode == 0, told.stderr
        assert "openai gpt-5-mini" in told.stdout
        assert "at most: 12 requests" in told.stdout
        server.change(work=100.0)
        done = run(*batch, **keys(server.url))
        assert done.returncode in {0, 1}, done.stderr
        bill = server.ask("bill")
        jobs = server.ask("jobs")
    journal = place / "run.db"
    # One job a round, as many as the item with most draws had; its replies are up to chance.
    assert len(jobs) == max(item["usage"]["requests"] for item in read_items(journal)) <= 3
    counts = read_run(journal)["counts"]
    assert counts["passed"] + counts["failed"] == ROWS
    assert bill["direct"]["requests"] == 0
    assert spent(journal) == (bill["jobs"]["requests"], bill["jobs"]["nano"])
    told = run(*command_of_page("batch status"))
    assert f"{bill['jobs']['requests']} requests" in told.stdout
    dollars = bill["jobs"]["nano"] / 10**9
    cost = re.search(r"out, \$(\d+\.\d+)", told.stdout)
    assert cost is not None, told.stdout
    assert float(cost[1]) == pytest.approx(dollars, rel=0.01)
    for made, file in (("export", "sft.jsonl"), ("report", "report.html")):
        assert run(*command_of_page(made)).returncode == 0
        assert place.joinpath(file).stat().st_size
    rows = place.joinpath("sft.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == counts["passed"]


def test_ctrl_c_leaves_the_jobs_and_cancel_keeps_what_they_have_answered(place):
    with jobs_server("openai", place / "server.db", speed=200, work=10_000.0) as server:
        batch = [*command_of_page("batch questions.jsonl"), "--poll", "0.05"]
        started = start(*batch, env=environment(**keys(server.url)))
        while not server.ask("jobs"):
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=20)
        assert started.returncode == 130
        assert b"1 job is still running at the provider" in said
        assert b"mellea-like batch cancel run.db" in said
        server.skip(2000)
        done = run(*command_of_page("batch cancel"), "--poll", "0.1", **keys(server.url))
        assert done.returncode == 0, done.stderr
        assert "cancelling job" in done.stderr
        kept = server.ask("bill")["jobs"]["requests"]
        assert 0 < kept < ROWS
        assert f"Billed for answers so far: {kept} requests" in done.stdout
        server.change(work=100.0)
        assert run(*batch, **keys(server.url)).returncode in {0, 1}
        bill = server.ask("bill")
    assert spent(place / "run.db") == (bill["jobs"]["requests"], bill["jobs"]["nano"])


@pytest.mark.parametrize("provider", ["anthropic", "mistral"])
def test_other_providers_have_the_same_command(place, provider, command, monkeypatch):
    with jobs_server(provider, place / "server.db", speed=2000, pass_rate=0.7) as server:
        batch = command_of_page("batch questions.jsonl")
        batch[batch.index("openai")] = provider
        more = ["--base-url", server.url, "--poll", "0.05", "--select", "best:length", "--n", "2"]
        for name, value in keys(server.url).items():
            monkeypatch.setenv(name, value)
        code, _, err = command(*batch, *more)
        assert code in {0, 1}, err
        bill = server.ask("bill")
    assert spent(place / "run.db") == (bill["jobs"]["requests"], bill["jobs"]["nano"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--model", "m"], "--batch-api needs --journal"),
        (["--journal", "run.db"], "needs the name of a model"),
        (["--model", "m", "--journal", "run.db", "--backend", "markov"], "--backend"),
        (["--model", "m", "--journal", "run.db", "--lanes", "2"], "--lanes"),
        (["--model", "m", "--journal", "run.db", "--rpm", "2"], "--rpm"),
    ],
)
def test_what_does_not_go_with_jobs_is_refused(place, options, why, command):
    code, _, err = command(
        *("batch", "questions.jsonl", "-p", "{{ question }}", "-o", "out.jsonl"),
        *("--batch-api", "openai", *options),
    )
    assert (code, why in err) == (2, True), err


@pytest.mark.parametrize("what", ["status", "cancel"])
def test_a_run_without_jobs_has_none_to_show(place, what, command):
    code, _, err = command("batch", what, "run.db")
    assert (code, "there is no such file" in err) == (3, True), err


def test_direct_requests_go_to_the_server_of_the_jobs(monkeypatch):
    for name, value in keys("http://elsewhere.example").items():
        monkeypatch.setenv(name, value)
    here = {"base_url": "http://here.example", "canary": True}
    jobs = JobsUpstream(kind="jobs", api="anthropic", model="m", **here).make()
    assert jobs.direct._model.base_url.startswith("http://here.example")


def test_jobs_at_a_batch_api_of_one_s_own_are_not_looked_for_at_another(monkeypatch):
    for name, value in keys("http://elsewhere.example").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Problem, match="must be one of openai, azure, anthropic, mistral, not mine"):
        api_at("mine model http://here.example")
