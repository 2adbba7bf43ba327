"""Programs can't harm the machine, and leave nothing behind."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from code_kit import sandbox
from leftovers import children

from mellea_like.errors import RequirementError
from mellea_like.requirements.code import CodeJob, Sandbox
from mellea_like.requirements.code import sandbox as module
from mellea_like.requirements.code.report import described

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
]


# Hostile programs run only in namespaces, because they could reach this user's processes otherwise.
@pytest.fixture(scope="module", params=["unshare", "bubblewrap"])
def box(request):
    if request.param == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    for made in sandbox(seconds=5, output=10**5, concurrency=1):
        made._way = request.param
        yield made


async def held(box):
    """Return whether programs are in namespaces, which not every machine allows."""
    return "isolated by namespaces" in await box.describe()


def below(pid):
    """Return all descendants of a process."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text("ascii").split()):
                found += [child, *below(child)]
    return found


def entries(directory):
    return list(Path(directory).iterdir())


async def run(box, program, **settings):
    return await box.run(CodeJob(program=program, **settings))


async def side_by_side(box, program):
    """Run a program four times at once."""
    reports = []

    async def one():
        reports.append(await run(box, program))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    return reports


BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
DAEMON = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            {close}
            time.sleep(600)
        os._exit(0)
print("gone")
"""
HOSTILE = {
    "loop": ("while True: pass", "0.2 s of processor time"),
    "signals ignored": (
        (
            "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\nwhile True: pass"
        ),
        "0.2 s of processor time",
    ),
    "bomb": (BOMB, ", and was ended"),
    "memory": ("x = bytearray(10 * 2**30)", "MemoryError"),
    "more and more memory": (
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 10**8))",
        "Cannot allocate memory",
    ),
    "output": ("import os\nwhile True: os.write(1, b'x' * 2**20)", "it printed more than 97.7 KiB"),
    "errors": ("import os\nwhile True: os.write(2, b'x' * 2**20)", "it printed more than 97.7 KiB"),
    "a large file": (
        "with open('x', 'wb') as file:\n    while True: file.write(b'x' * 2**20)",
        "OSError: [Errno ",
    ),
    "closed outputs": ("import os\nos.closerange(0, 99)\nwhile True: pass", "of processor time"),
    "stopped": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        "it was not done after 1.8 s",
    ),
    "daemons": (DAEMON.format(close="pass"), ""),
    "daemons without descriptors": (DAEMON.format(close="os.closerange(0, 99)"), ""),
    "a daemon that forks": (
        DAEMON.format(close="\n            while True:\n                if os.fork(): os._exit(0)"),
        "",
    ),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Programs don't depend on the event loop.
@pytest.mark.parametrize("hostile", HOSTILE)
async def test_what_misbehaves_is_ended_and_nothing_is_left(box, hostile):
    program, failure = HOSTILE[hostile]
    await box.describe()
    (server,) = box._servers
    before = below(server.process.pid)
    seconds = 0.2 if failure.endswith((" s", "time")) else None
    # A bomb takes all processors until its time is up.
    report = await run(box, program, seconds=0.05 if hostile == "bomb" else seconds)
    assert failure in report.failure
    assert bool(failure) is bool(report.failure)
    assert max(len(report.stdout), len(report.stderr)) <= 10**5
    assert box._servers == [server]
    assert below(server.process.pid) == before


async def test_keys_are_out_of_reach(box, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234")
    report = await run(box, "import os\nprint(dict(os.environ), os.path.exists('/proc/1/environ'))")
    assert "sk-1234" not in report.stdout
    assert ("False" in report.stdout) is await held(box)
    environ = anyio.Path(f"/proc/{box._servers[0].process.pid}/environ")
    assert b"sk-" not in await environ.read_bytes()


OUTSIDE = {
    "a file": "open('/tmp/../usr/x', 'w')",
    "a home": f"open({os.fspath(Path(__file__))!r})",
    "Python": "import os; open(os.__file__, 'a')",
    "the network": "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
    "everybody": "import os; os.kill(-1, 9)",
    "root": "import os; os.setuid(0)" if os.getuid() == 0 else "import os; os.chroot('/')",
    "a namespace": "import os, ctypes\nif ctypes.CDLL(None).unshare(0x10000000): raise OSError",
    "privileges": "import ctypes\nif ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1: raise OSError",
    "mounts": "import ctypes\nif ctypes.CDLL(None).umount2(b'/tmp', 2): raise OSError",
}


walled = pytest.fixture(scope="module", name="walled")(sandbox)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("outside", OUTSIDE)
async def test_with_namespaces_nothing_outside_can_be_reached(walled, outside):
    if not await held(walled):
        pytest.skip("no namespaces here")
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        report = await run(walled, OUTSIDE[outside].replace("{port}", str(port)))
    assert "Error" in report.failure
    assert (await run(walled, "import socket; socket.socket()")).failure == ""


async def test_files_are_limited_in_all_and_the_directory_is_fresh():
    async with Sandbox(files=2**20) as box:
        many = "for i in range(9):\n    with open(f'{i}', 'wb') as f: f.write(b'x' * 2**18)"
        report = await run(box, many)
        assert ("No space left" in report.failure) is await held(box)
        report = await run(box, "import os, tempfile\nprint(os.listdir('.'), tempfile.mkdtemp())")
        assert report.stdout.startswith("[] ")


@pytest.fixture
def path():
    """A folder outside of ``/dev``, where ``tmp_path`` may be: programs have another ``/dev``."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def test_a_program_imports_what_its_path_has_and_starts_processes(path):
    (path / "helper.py").write_text("x = 42\n", encoding="utf-8")
    async with Sandbox(path=[path], preload=["helper"]) as box:
        report = await run(
            box, "import sys; print('helper' in sys.modules)\nimport helper; print(helper.x)"
        )
        assert report.stdout == "True\n42\n"
        code = (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(5)'], check=True)"
        )
        assert (await run(box, code)).stdout == "5\n"


async def test_a_cancelled_run_is_ended_at_once_and_its_server_goes_on(box):
    await box.describe()
    (server,) = box._servers
    before = below(server.process.pid)
    for program, tests in (("while True: pass", ()), ("def f():\n    while True: pass", ("f()",))):
        with anyio.move_on_after(0.1) as scope:
            await run(box, program, tests=tests, seconds=60)
        assert scope.cancelled_caught
        assert box._servers == [server]
        assert below(server.process.pid) == before
        assert (await run(box, "print(1)")).stdout == "1\n"


async def test_a_cancellation_at_any_moment_leaves_a_sandbox_that_works():
    async with Sandbox(concurrency=1) as box:
        for i in range(18):
            with anyio.move_on_after(i * 0.002):
                await run(box, "print('x' * 10**6)", tests=("assert 1 == 1",) if i % 3 else ())
            report = await run(box, "print(2)")
            assert (report.failure, report.stdout) == ("", "2\n")
        assert len(box._servers) == 1


async def test_a_server_that_was_killed_is_replaced(box):
    await box.describe()
    (server,) = box._servers
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(10)  # The server may answer until it is really dead.
    assert (await run(box, "print(1)")).stdout == "1\n"
    assert box._servers != [server]
    # If the server dies while a program runs, the program runs again.
    (server,) = box._servers
    async with anyio.create_task_group() as tasks:

        async def kill():
            while not below(server.process.pid)[1:]:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            os.kill(server.process.pid, signal.SIGKILL)

        tasks.start_soon(kill)
        report = await run(box, "import time; time.sleep(1); print(2)", seconds=9)
    assert (report.failure, report.stdout) == ("", "2\n")


async def test_a_template_outlives_the_thread_that_started_it(box):
    async with Sandbox() as other:

        def start():
            other._servers.append(module._Server(other._config, box._way))
            anyio.run(other._servers[0].begin)

        thread = threading.Thread(target=start)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        (server,) = other._servers
        with pytest.raises(subprocess.TimeoutExpired):
            await anyio.to_thread.run_sync(server.process.wait, 0.3)
        assert (await run(other, "print(1)")).stdout == "1\n"
        assert other._servers == [server]


async def test_programs_that_wait_for_a_processor_are_not_refused():
    busy = "import time\nwhile time.process_time() < 0.1: pass\nprint('done')"
    async with Sandbox(concurrency=4, seconds=0.2, wall_seconds=30) as wide:
        reports = await side_by_side(wide, busy)
    assert [report.stdout for report in reports] == ["done\n"] * 4, reports


async def test_programs_side_by_side_may_have_as_many_threads_as_are_allowed(box):
    threads = (
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    print(len(set(pool.map(lambda b: (b.wait(5), threading.get_ident())[1],"
        " [threading.Barrier(16)] * 16))))"
    )
    async with Sandbox(concurrency=2) as wide:
        wide._way = box._way
        reports = await side_by_side(wide, threads)
    assert [report.stdout for report in reports] == ["16\n"] * 4, reports


async def test_a_program_can_neither_end_nor_stop_what_watches_it(box):
    await box.describe()
    (server,) = box._servers
    code = (
        "import os, signal\nfor n in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):\n"
        "    try: os.kill(os.getppid(), n)\n    except OSError: pass"
    )
    assert (await run(box, code)).failure == ""
    assert box._servers == [server]


async def test_a_program_that_was_killed_from_outside_has_no_verdict(box):
    with pytest.raises(RequirementError, match="killed from outside"):
        await run(box, "import os; os.kill(os.getpid(), 9)")


def limited(**settings):
    with pytest.warns(RuntimeWarning, match="programs can access the network"):
        return Sandbox(isolation="limits", **settings)


async def test_limits_alone_warn_and_never_run_a_program_as_root():
    async with limited() as box:
        try:
            said = await box.describe()
        except RequirementError as exc:  # Other users can't read this Python.
            assert os.getuid() == 0
            assert "unprivileged users can't read" in str(exc)  # noqa: PT017
            return
        assert "no further isolation" in said
        report = await run(box, "import os; print(os.getuid())")
        assert int(report.stdout) != 0


async def test_without_namespaces_nothing_runs_unless_limits_are_asked_for(monkeypatch):
    monkeypatch.setattr(
        module, "PARTS", ("plain", "pytest_parts", "harness")
    )  # The template can't start.
    with pytest.raises(RequirementError, match=r"could not start.*isolation='limits'"):
        await Sandbox().describe()


async def test_runs_leave_no_descriptor_no_mount_and_no_zombie(box):
    await run(box, "")
    (server,) = box._servers
    pids = [server.process.pid, *below(server.process.pid)]

    def descriptors():
        mounts = Path(f"/proc/{pids[-1]}/mounts").read_text("utf-8").count("\n")
        return mounts, [len(entries(f"/proc/{pid}/fd")) for pid in ("self", *pids)]

    try:
        before = descriptors()
    except PermissionError:
        pytest.skip("the server's descriptors are root's to see")
    for i in range(10):
        await run(box, "print(1)", tests=("assert 1 == 1",) * (i % 2))
    assert descriptors() == before
    assert [server.process.pid, *below(server.process.pid)] == pids


async def test_closing_ends_the_servers_and_clears_away():
    before = children()
    async with Sandbox(concurrency=2) as box:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(run, box, "import time; time.sleep(.05)")
        servers = list(box._servers)
        assert len(servers) == 2
        pids = [pid for server in servers for pid in below(server.process.pid)]
        assert pids
    assert children() == before
    assert not any(alive(pid) for pid in pids)


SCRIPT = """
import anyio, sys
from mellea_like.requirements.code import CodeJob, Sandbox
box = Sandbox()
async def main():
    await box.describe()
    print(box._servers[0].process.pid, flush=True)
    await box.run(CodeJob(program={program!r}, seconds=60))
anyio.run(main)
"""


def test_nothing_outlives_a_killed_caller():
    script = SCRIPT.format(program=DAEMON.format(close="pass") + "\ntime.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as caller:
        server = int(caller.stdout.readline())
        until = time.monotonic() + 10
        while len(below(server)) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        pids = [server, *below(server)]
        caller.kill()
    assert len(pids) >= 5
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in pids if alive(pid)]


def alive(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_sandbox_says_what_holds(box):
    said = await box.describe()
    assert "limited to 5 s of processor time, 21 s of wall-clock time, 512 MiB" in said
    assert ("no network" in said) is ("no further isolation" not in said)
    assert said.endswith("A container is a boundary; this is a seat belt.")
    assert "seccomp" not in said
    unfiltered = described(box._config, box._way, {"seccomp": False})
    assert "no system call filter (seccomp)" in unfiltered


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"seconds": 0}, ValueError, "greater than 0"),
        ({"seconds": math.nan}, ValueError, "greater than 0"),
        ({"memory": 10}, ValueError, "at least 67108864"),
        ({"memory": "1 GiB"}, TypeError, "must be an integer"),
        ({"isolation": "bwrap"}, ValueError, "'auto' or 'limits'"),
        ({"preload": "numpy"}, TypeError, "must be a sequence of texts"),
        ({"concurrency": 0}, ValueError, "at least 1"),
    ],
)
def test_what_a_sandbox_can_t_be_is_refused(settings, error, says):
    with pytest.raises(error, match=says):
        Sandbox(**settings)


def test_windows_is_told_what_to_do_instead(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(NotImplementedError, match="needs Linux"):
        Sandbox()


async def test_a_command_that_is_no_python_is_said(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_TO_START", 5.0)
    with pytest.raises(RequirementError, match=r"doesn't start Python 3\.11 or newer"):
        await Sandbox(python=["true"]).describe()
