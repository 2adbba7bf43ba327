"""``mellea-like watch``: the real command, real files, real signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command_line import start

pytestmark = pytest.mark.skipif(
    not hasattr(os, "killpg"), reason="there are no process groups here"
)

QUICK = ("--quiet-seconds", "0.2")


class Watch:
    """The running command, whose output is collected."""

    def __init__(self, *arguments: str | Path, command: tuple[str, ...], **more) -> None:
        given = ("watch", *map(str, arguments), *QUICK, "--", *command)
        self.process = start(*given, stdin=subprocess.PIPE, text=True, **more)
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,), daemon=True)
            for lines, stream in ((self.out, self.process.stdout), (self.err, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def until(self, text: str, times: int = 1, *, out: bool = False) -> None:
        until = time.monotonic() + 20
        while "".join(self.out if out else self.err).count(text) < times:
            assert time.monotonic() < until, (text, self.out, self.err)
            assert self.process.poll() is None, (text, self.out, self.err)
            time.sleep(0.02)

    def end(self, number: int = signal.SIGINT, seconds: float = 15) -> int:
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(5)
        return code

    @property
    def told(self) -> list[str]:
        """The lines about the runs, without the times."""
        lines = [re.sub(r", \d+\.\d\d s$", ", TIME", line.rstrip("\n")) for line in self.err]
        return [line for line in lines if line.startswith("run ")]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


SAY = python("print('ran', flush=True)")


def test_it_runs_at_the_start_and_when_a_file_changes_and_tells_of_each_run(tmp_path):
    (tmp_path / "a.txt").write_text("1", encoding="utf-8")
    with Watch(tmp_path, command=SAY) as watch:
        watch.until("run 1 ")
        (tmp_path / "a.txt").write_text("2", encoding="utf-8")
        watch.until("run 2 ")
        (tmp_path / "b.txt").write_text("3", encoding="utf-8")
        watch.until("run 3 ")
        assert watch.end() == 130
    assert watch.out == ["ran\n"] * 3
    assert watch.err[0] == f"Watching {tmp_path}; press Ctrl-C to stop.\n"
    assert watch.told == [
        "run 1 (start): exit status 0, TIME",
        "run 2 (a.txt modified): exit status 0, TIME",
        "run 3 (b.txt added): exit status 0, TIME",
    ]
    assert watch.err[-1] == "Interrupted.\n"


def test_an_exit_status_or_a_signal_is_told_and_it_goes_on(tmp_path):
    code = f"""
import os, pathlib
number = len(list(pathlib.Path({str(tmp_path / "count")!r}).iterdir()))
pathlib.Path({str(tmp_path / "count")!r}, str(number)).touch()
os.kill(os.getpid(), 9) if number else exit(3)
"""
    (tmp_path / "count").mkdir()
    (tmp_path / "prompts").mkdir()
    with Watch(tmp_path / "prompts", command=python(code)) as watch:
        watch.until("run 1 ")
        (tmp_path / "prompts" / "new").touch()
        watch.until("run 2 ")
        assert watch.end() == 130
    assert watch.told == [
        "run 1 (start): exit status 3, TIME",
        "run 2 (new added): ended by signal 9 (Killed), TIME",
    ]


def test_files_that_are_ignored_start_nothing(tmp_path):
    with Watch(tmp_path, "--ignore", "*.log", command=SAY) as watch:
        watch.until("run 1 ")
        for name in ("out.log", "a.pyc", "a.txt~"):
            (tmp_path / name).touch()
        (tmp_path / "a.txt").touch()
        watch.until("run 2 ")
        watch.end()
    assert [line.split(":")[0] for line in watch.told] == ["run 1 (start)", "run 2 (a.txt added)"]


SLOW = "import time; print('began', flush=True); time.sleep(60)"


def test_ctrl_c_ends_the_command_and_exits_with_130(tmp_path):
    with Watch(tmp_path, command=python(SLOW)) as watch:
        watch.until("began", out=True)
        assert watch.end() == 130
    assert "KeyboardInterrupt" in "".join(watch.err)
    assert watch.told == ["run 1 (start): stopped, TIME"]
    assert watch.err[-1] == "Interrupted: the command was stopped.\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_command_that_ignores_ctrl_c_is_terminated_after_a_grace(tmp_path, number, code):
    stubborn = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLOW}"
    with Watch(tmp_path, "--grace", "0.3", command=python(stubborn)) as watch:
        watch.until("began", out=True)
        assert watch.end(number) == code
    assert watch.told == ["run 1 (start): stopped, TIME"]


def test_one_that_ignores_that_too_is_killed_with_all_it_has_started(tmp_path):
    inner = "import signal, os, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; "
    code = inner + (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {inner + 'time.sleep(60)'!r}]); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with Watch(tmp_path, "--grace", "0.2", command=python(code)) as watch:
        watch.until("\n", out=True)
        child = int(watch.out[0])
        assert watch.end() == 130
    until = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat")
            if state.exists() and state.read_text(encoding="utf-8").split()[2] == "Z":
                return  # Dead; whoever adopted it has not looked yet.
            time.sleep(0.05)
        pytest.fail("the command's child lives on")


def test_a_second_ctrl_c_grants_no_more_grace(tmp_path):
    stubborn = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLOW}"
    with Watch(tmp_path, "--grace", "30", command=python(stubborn)) as watch:
        watch.until("began", out=True)
        watch.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert watch.end(seconds=5) == 130


def test_restart_stops_the_run_and_begins_again(tmp_path):
    with Watch(tmp_path, "--on-busy", "restart", command=python(SLOW)) as watch:
        watch.until("began", out=True)
        (tmp_path / "a.txt").touch()
        watch.until("began", times=2, out=True)
        assert watch.end() == 130
    assert watch.told == ["run 1 (start): stopped, TIME", "run 2 (a.txt added): stopped, TIME"]


def test_runs_never_overlap_and_a_thousand_changes_give_few(tmp_path):
    log = tmp_path / "log"
    code = f"""
import time
with open({str(log)!r}, "a") as log:
    for word in ("begin", "end"):
        print(word, file=log, flush=True)
        time.sleep(0.3)
"""
    (tmp_path / "prompts").mkdir()
    with Watch(tmp_path / "prompts", command=python(code)) as watch:
        watch.until("run 1 ")
        for number in range(1000):
            (tmp_path / "prompts" / f"{number}").write_text("x", encoding="utf-8")
        until = time.monotonic() + 20
        while changes(watch.told) < 1000:
            assert time.monotonic() < until, watch.told
            time.sleep(0.02)
        watch.end()
    lines = log.read_text(encoding="utf-8").split()
    # A busy machine writes the files so slowly that several runs find some, the last one late.
    assert lines == (["begin", "end"] * 20)[: len(lines)]
    assert lines.count("begin") >= 2


def changes(told: list[str]) -> int:
    """The numbers of changes with which runs began."""
    of_runs = [re.findall(r"\(.* (?:added|modified)(?:, and (\d+) more)?\)", line) for line in told]
    return sum(1 + int(more or 0) for found in of_runs for more in found)


def test_a_command_that_vanishes_is_told_and_it_goes_on(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    script.chmod(0o755)
    (tmp_path / "prompts").mkdir()
    with Watch(tmp_path / "prompts", command=(str(script),)) as watch:
        watch.until("run 1 ")
        script.unlink()
        (tmp_path / "prompts" / "a").touch()
        watch.until("run 2 ")
        watch.end()
    assert watch.told[1] == "run 2 (a added): can't run it: No such file or directory, TIME"


def test_the_command_gets_no_input_and_its_own_dashes(tmp_path):
    echo = python("import sys; print(sys.argv[1:], repr(sys.stdin.read()))")
    with Watch(tmp_path, command=(*echo, "--clear", "--", "-x")) as watch:
        watch.until("run 1 ")
        watch.end()
    assert watch.out == ["['--clear', '--', '-x'] ''\n"]


def test_it_keeps_its_state_and_tells_its_status(tmp_path):
    kept = ("--state", tmp_path / "watch.json", "--min-interval", "60", "--status")
    with Watch(tmp_path, *kept, command=SAY) as watch:
        watch.until("1 runs, 0 coalesced", times=2)
        watch.end()
    when = r", last change \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    told = [re.sub(when, ", TIME", line) for line in watch.err if line.startswith("status: ")]
    assert told == [
        "status: idle, 1 waiting, 0 runs, 0 coalesced, TIME\n",
        "status: running (start), 1 runs, 0 coalesced, TIME\n",
        "status: idle, 1 runs, 0 coalesced, TIME\n",
    ]
    with Watch(tmp_path, *kept, command=SAY) as watch:  # It is soon after the first run.
        watch.until("status: idle, 1 waiting for 5")
        watch.end()
    assert watch.out == []


def test_a_state_that_can_not_be_kept_is_told_in_a_sentence(tmp_path, command):
    damaged = tmp_path / "watch.json"
    damaged.write_text("?", encoding="utf-8")
    for file, says in (
        (damaged, f"the gate's state in {damaged} is damaged"),
        (tmp_path, f"a gate's state can't be kept in {tmp_path}: Is a directory"),
    ):
        code, out, err = command("watch", str(tmp_path), "-q", "--state", str(file), "--", "true")
        assert (code, out) == (3, "")
        assert err.startswith(f"mellea-like: {says}")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["watch"], 2, "Missing argument 'PATHS'"),
        (["watch", "--", "true"], 2, "Missing argument 'PATHS'"),
        (["watch", "."], 2, "add it after two dashes: watch PATHS -- COMMAND"),
        (["watch", ".", "--"], 2, "add it after two dashes: watch PATHS -- COMMAND"),
        (["watch", "missing", "--", "true"], 3, "can't watch missing: there is no such file"),
        (["watch", "x" * 999, "--", "true"], 3, "there is no such file"),
        (["watch", ".", "--", "missing"], 3, "can't run missing: there is no such command"),
        (["watch", ".", "--max-wait", "-1", "--", "true"], 2, "'--max-wait'"),
        (["watch", ".", "--on-busy", "x", "--", "true"], 2, "'x'"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(command, arguments, code, says):
    got, out, err = command(*arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_without_watchfiles_it_names_the_extra(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    code, out, err = command("watch", str(tmp_path), "--quiet", "--", "true")
    assert (code, out) == (3, "")
    assert err == "mellea-like: watch needs watchfiles: pip install 'mellea-like[watch]'\n"
