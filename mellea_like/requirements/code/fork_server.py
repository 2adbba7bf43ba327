"""The server process: it forks a process for each program, watches it, and says how it ended.

Everything that is imported is imported once, here, so that a program's start is a fork. The server
itself never runs a program, nor reads one: the new process does. Standard library only: the source
is sent to an interpreter, which may be in a container or on another machine.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from mellea_like.requirements.code.channel import exactly, frame
from mellea_like.requirements.code.guest import drive, dumped, load, run

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["serve"]

SECONDS_TO_SWEEP = 5.0
"""How long processes that a program left behind are hunted, where no namespace ends them."""

STRANGERS = 0x7000_0000
"""User ids from here on are nobody's; a root server gives its programs one of their own."""

NOBODY = 65534

MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/tmp", "/home")  # noqa: S108
"""Directories of which one is where the programs' root directory is put together."""

SHOWN = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
"""What programs see of the file system, besides Python."""

DEVICES = ("null", "zero", "full", "random", "urandom")

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/capability.h>
NEWNS, NEWUTS, NEWIPC, NEWUSER = 0x0002_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000
NEWPID, NEWNET = 0x2000_0000, 0x4000_0000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_SETATTR = 442
ATTR_RDONLY, ATTR_NOSUID = 1, 2
DEATHSIG, DUMPABLE, SUBREAPER, NO_NEW_PRIVS = 1, 4, 36, 38
CAPABILITIES = 0x2008_0522


def serve(settings: dict[str, Any]) -> NoReturn:
    """Answer questions on descriptor 0 until there are no more; the rest is the command line's."""
    os.umask(0o022)
    sys.executable = os.path.realpath(sys.executable)
    settings["stranger"] = STRANGERS + os.getpid() % 2**20
    holds: dict[str, Any] = {"system": platform.system(), "namespaces": False}
    own = -1
    if sys.platform == "linux" and settings["isolation"] == "auto" and _works(settings):
        own = _enter(settings)
        holds["namespaces"] = True
    else:
        _guard(settings)
    _Server(settings, holds, own).answer()


# --- what the system allows: found out by trying -------------------------------------------------


def _works(settings: dict[str, Any]) -> bool:
    """Try to isolate, in a process that is thrown away."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.close(ours)
            own = _enter(settings)
            _call("unshare", NEWPID)
            _call("setns", own, NEWPID)
            _fresh_directory(settings["files"], os.getuid())
            os.write(theirs, b"y")
        os._exit(0)
    os.close(theirs)
    works = bool(os.read(ours, 1))
    os.close(ours)
    os.waitpid(pid, 0)
    return works


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> int:
    answer: int = getattr(_LIBC, name)(*args)
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def _enter(settings: dict[str, Any]) -> int:
    """Go on in a process with namespaces of its own; returns its own namespace of processes."""
    user, group = os.geteuid(), os.getegid()
    flags = NEWUSER | NEWPID | NEWNET | NEWNS | NEWIPC | NEWUTS
    if user:
        _call("unshare", flags)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        _write("/proc/self/uid_map", f"{user} {user} 1")
    else:
        _let_in(settings["stranger"], partial(_call, "unshare", flags))
    with suppress(OSError):
        _write("/proc/sys/user/max_user_namespaces", "0")
    pid = os.fork()
    if pid:  # Its namespace of processes ends with it, and it with us.
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _call("prctl", DEATHSIG, signal.SIGKILL, 0, 0, 0)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    _new_root([*SHOWN, sys.base_prefix, sys.base_exec_prefix, *sys.path, *settings["path"]])
    return own


def _guard(settings: dict[str, Any]) -> None:
    """Go on in a process whose end this one waits for, to clear away what it leaves."""
    settings["place"] = tempfile.mkdtemp(prefix="mellea-code-")
    if sys.platform == "linux":
        _call("prctl", SUBREAPER, 1, 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        if sys.platform == "linux":
            _call("prctl", DEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    os.waitpid(pid, 0)
    _sweep(pid)
    shutil.rmtree(settings["place"], ignore_errors=True)
    os._exit(0)


def _let_in(stranger: int, leave: Callable[[], object]) -> None:
    """Leave for a namespace in which root and a stranger are users: root of the old one says so."""
    waiting, left = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(left)
        for users in ((0, stranger), (0, NOBODY), (0,)) if os.read(waiting, 1) else ():
            with suppress(OSError):
                text = "".join(f"{user} {user} 1\n" for user in users)
                for kind in ("gid_map", "uid_map"):
                    _write(f"/proc/{os.getppid()}/{kind}", text)
                os._exit(0)
        os._exit(1)
    os.close(waiting)
    try:
        leave()
        os.write(left, b"y")
    finally:
        os.close(left)
        status = os.waitpid(pid, 0)[1]
    if status:
        raise PermissionError


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _new_root(shown: list[str]) -> None:
    """Make a root directory with nothing in it but what is shown, and that read-only."""
    # A place is shown under its own name, and under the one that its links lead to.
    real = {path for one in shown for path in (one, os.path.realpath(one)) if os.path.exists(path)}  # noqa: PTH110
    paths = sorted(path for path in real if path.startswith("/") and path != "/")
    paths += [f"/dev/{name}" for name in DEVICES]
    base = next(
        place
        for place in MOUNT_POINTS
        if os.path.isdir(place) and not os.path.islink(place)  # noqa: PTH112, PTH114
    )
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", base.encode(), b"tmpfs", MS_NOSUID, b"size=1m,mode=755")
    links: set[str] = set()
    for path, source in sources.items():
        parts = path.split("/")
        above = {"/".join(parts[: i + 1]) for i in range(1, len(parts) - 1)}
        if above & links or os.path.exists(base + path):  # noqa: PTH110
            continue  # Shown with what it is in.
        os.makedirs(base + os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.islink(path):  # noqa: PTH114
            os.symlink(os.readlink(path), base + path)  # noqa: PTH115, PTH211
            links.add(path)
            continue
        if os.path.isdir(path):  # noqa: PTH112
            os.mkdir(base + path)  # noqa: PTH102
        else:
            os.close(os.open(base + path, os.O_CREAT | os.O_WRONLY, 0o644))
        _call("mount", b"/proc/self/fd/%d" % source, (base + path).encode(), None, 20480, None)
        _read_only(base + path, AT_RECURSIVE)
    os.mkdir(f"{base}/tmp")  # noqa: PTH102, S108
    os.symlink("/tmp", f"{base}/dev/shm")  # noqa: PTH211, S108
    for source in sources.values():
        os.close(source)
    os.chdir(base)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    _read_only("/", 0)


def _read_only(path: str, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY | ATTR_NOSUID, 0, 0, 0)
    number, size = ctypes.c_long(MOUNT_SETATTR), ctypes.c_size_t(32)
    _call("syscall", number, AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size)


def _fresh_directory(size: int, user: int) -> None:
    """Give this process a directory that is in memory, and is gone with it."""
    _call("unshare", NEWNS | NEWIPC)
    options = f"size={size},nr_inodes=4096,mode=700,uid={user},gid={user}"
    _call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())
    os.chdir("/tmp")  # noqa: S108


def _drop_privileges(user: int) -> None:
    """Give up all that a program could use against the system."""
    if os.geteuid() == 0 and user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if sys.platform != "linux":
        return
    nothing = (ctypes.c_uint32 * 6)()
    _call("capset", (ctypes.c_uint32 * 2)(CAPABILITIES, 0), nothing)
    _call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", DEATHSIG, signal.SIGKILL, 0, 0, 0)


# --- runs ----------------------------------------------------------------------------------------


class _Server:
    """Runs one program at a time."""

    def __init__(self, settings: dict[str, Any], holds: dict[str, Any], own: int) -> None:
        self.settings = settings
        self.holds = holds
        self.own = own
        self.user = os.geteuid()
        self.place = ""
        sys.path += settings["path"]
        for name in settings["preload"]:
            importlib.import_module(name)
        if own < 0:
            self.place = settings["place"]
            os.chmod(self.place, 0o711)  # noqa: PTH101, S103
        if sys.platform == "linux":
            _call("prctl", SUBREAPER, 1, 0, 0, 0)
            _call("prctl", DUMPABLE, 0, 0, 0, 0)
        if self.user == 0:
            self.user = self._stranger()
        holds["user"] = self.user
        holds["root"] = self.user == 0
        holds["place"] = self.place

    def answer(self) -> NoReturn:
        """Answer until nobody asks."""
        os.environ.clear()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 2)
        os.close(null)
        gc.collect()
        gc.freeze()
        _send(self.holds)
        while question := frame(0):
            asked = json.loads(question)
            if not asked:
                continue  # A cancellation that came after the end.
            found = _Run(self, asked).result()
            if found is None:
                break
            _send(found)
        os._exit(0)

    def _stranger(self) -> int:
        """Find a user id of which nobody else has processes or files; 0 where there is none."""
        for user in (self.settings["stranger"], NOBODY):
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    os.setgroups([])
                    os.setresgid(user, user, user)
                    os.setresuid(user, user, user)
                    with open(os.__file__, "rb"):  # noqa: PTH123
                        os._exit(0)
                os._exit(1)
            if os.waitpid(pid, 0)[1] == 0:
                return user
        return 0

    def threads(self) -> int:
        """Count the user's threads, all of which count where the number of processes is limited."""
        count = 0
        if self.own < 0 < self.user:
            with suppress(OSError):
                for name in os.listdir("/proc"):  # noqa: PTH208
                    with suppress(OSError):
                        if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == self.user:  # noqa: PTH116
                            count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
        return count

    def fork(self) -> int:
        """Fork a process, in a namespace of its own where there are any."""
        if self.own < 0:
            return os.fork()
        _call("unshare", NEWPID)
        pid = os.fork()
        if pid:
            _call("setns", self.own, NEWPID)
        return pid

    def confine(self, place: str, seconds: float, extra: int) -> None:
        """Take away from this process what a program may not have."""
        settings = self.settings
        os.setsid()
        if self.own < 0:
            os.chdir(place)
        elif place:
            _fresh_directory(settings["files"], self.user)
        processor = int(seconds) + 2
        limits = {
            "AS": settings["memory"],
            "CORE": 0,
            "CPU": processor,
            "FSIZE": settings["files"],
            "NOFILE": 128,
            "NPROC": extra + settings["processes"],
            "MSGQUEUE": 0,
        }
        for name, limit in limits.items():
            if hasattr(resource, f"RLIMIT_{name}"):
                with suppress(OSError, ValueError):  # Not on this system, or less already.
                    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        _drop_privileges(self.user)


class _Run:
    """One run of one program."""

    def __init__(self, server: _Server, asked: dict[str, Any]) -> None:
        self.server = server
        self.asked = asked
        self.seconds: float = asked["seconds"]
        self.left: int = server.settings["output"]
        self.texts = {name: bytearray() for name in ("stdout", "stderr")}
        self.pipes: dict[int, str] = {}
        self.said = bytearray()
        self.ended = ""
        self.status: int | None = None
        self.place = "fresh"
        self.began = 0.0

    def result(self) -> dict[str, Any] | None:
        """Run it; None when nobody waits for the result."""
        if self.server.own < 0:
            self.place = tempfile.mkdtemp(dir=self.server.place)
            os.chown(self.place, self.server.user, -1)
        try:
            return self._result()
        finally:
            if self.server.own < 0:
                shutil.rmtree(self.place, ignore_errors=True)

    def _result(self) -> dict[str, Any] | None:
        tested = self.asked["tested"]
        theirs, ours = socket.socketpair()
        outs = {name: os.pipe() for name in self.texts}
        started = os.pipe()
        others = 4 + self.server.threads()
        program = self.server.fork()
        if program == 0:
            self._program(theirs, outs, started[1], others)
        for _, end in (*outs.values(), started):
            os.close(end)
        theirs.close()
        self.pipes = {outs[name][0]: name for name in outs}
        trouble = exactly(started[0], 2000)
        os.close(started[0])
        tests, verdict = 0, -1
        if tested:
            verdict, saying = os.pipe()
            tests = os.fork()
            if tests == 0:
                self._tests(ours, saying, others)
            os.close(saying)
            exactly(verdict, 1)  # They have read what they were sent.
        ours.close()
        self.began = time.monotonic()
        try:
            there = not trouble and self._watch(program, verdict)
        finally:
            self._end(program, tests)
            for pipe in (*self.pipes, *((verdict,) if tested else ())):
                os.close(pipe)
        if not there and not trouble:
            return None
        return {
            "ended": self.ended,
            "status": self.status,
            "trouble": trouble.decode("utf-8", "replace"),
            "said": [json.loads(line) for line in self.said.rpartition(b"\n")[0].splitlines()[-2:]],
            "seconds": time.monotonic() - self.began,
            **{name: text.decode("utf-8", "replace") for name, text in self.texts.items()},
        }

    def _program(
        self, connection: socket.socket, outs: dict[str, tuple[int, int]], started: int, others: int
    ) -> NoReturn:
        """Become the program."""
        try:
            given = json.loads(frame(0))
            self.server.confine(self.place, self.seconds, others)
            inner = os.open(os.devnull, os.O_RDONLY)
            if given["stdin"]:
                with tempfile.TemporaryFile(dir=".") as file:
                    file.write(given["stdin"].encode("utf-8", "replace"))
                    file.seek(0)
                    os.dup2(file.fileno(), inner)
            for target, source in ((0, inner), (1, outs["stdout"][1]), (2, outs["stderr"][1])):
                os.dup2(source, target)
            tested = connection.detach()
            keep = {tested, started} if self.asked["tested"] else {started}
            _close_all_but(keep)
            directory = os.getcwd()  # noqa: PTH109
            tempfile.tempdir = None
            os.environ.update(HOME=directory, TMPDIR=directory)
        except BaseException as exc:  # noqa: BLE001 (told to the server)
            os.write(started, f"{type(exc).__name__}: {exc}"[:1000].encode())
            os._exit(1)
        os.close(started)
        self.asked = {}
        if keep == {started}:
            run(given["source"])
        load(given["source"], socket.socket(fileno=tested))

    def _tests(self, connection: socket.socket, saying: int, others: int) -> NoReturn:
        """Become the tests, which are trusted."""
        try:
            given = json.loads(frame(0))
            os.write(saying, b"\n")
            self.server.confine("" if self.server.own >= 0 else self.place, self.seconds, others)
            null = os.open(os.devnull, os.O_RDWR)
            for target in (0, 1, 2):
                os.dup2(null, target)
            if sys.platform == "linux":
                _call("prctl", DUMPABLE, 0, 0, 0, 0)
            drive(given, connection, saying)
        except BaseException as exc:  # noqa: BLE001 (told to the server)
            os.write(saying, dumped({"wrong": f"{type(exc).__name__}: {exc}"}))
        os._exit(0)

    def _watch(self, program: int, verdict: int) -> bool:
        """Wait until the run has ended, or has to; whether somebody still waits for it."""
        poll = select.poll()
        ended = os.pidfd_open(program) if hasattr(os, "pidfd_open") else -1
        for descriptor in (0, *self.pipes, verdict, ended):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        longest = 60.0 if ended >= 0 else 0.02
        try:
            while not self.ended:
                left = self.began + self.seconds - time.monotonic()
                if left <= 0:
                    self.ended = "time"
                for descriptor, _ in poll.poll(1000 * max(0.0, min(left, longest))):
                    if descriptor == 0:
                        self.ended = "cancelled"
                        return bool(frame(0))
                    if not self._hear(descriptor, verdict):
                        poll.unregister(descriptor)
                if verdict < 0 and self._has_ended(program):
                    self.ended = self.ended or "itself"
        finally:
            if ended >= 0:
                os.close(ended)
        return True

    def _hear(self, descriptor: int, verdict: int) -> bool:
        """Read from a descriptor that has something; whether it may have more."""
        if descriptor in self.pipes:
            return self._read(descriptor)
        if descriptor != verdict:
            return False  # The program has ended.
        more = os.read(verdict, 2**20)
        self.said += more
        if not more:
            self.ended = self.ended or "told"
        return bool(more)

    def _read(self, pipe: int) -> bool:
        """Read what a program wrote; too much ends it."""
        data = os.read(pipe, 2**16)
        self.texts[self.pipes[pipe]] += data[: self.left]
        if len(data) > self.left:
            self.ended = self.ended or "output"
        self.left = max(0, self.left - len(data))
        return bool(data)

    def _has_ended(self, pid: int) -> bool:
        if self.status is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def _end(self, program: int, tests: int) -> None:
        """End every process of the run, and read what it had written."""
        if self.ended != "itself" and not self._has_ended(program):
            os.kill(program, signal.SIGKILL)
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        if tests:
            os.kill(tests, signal.SIGKILL)
            os.waitpid(tests, 0)
        if self.server.own < 0:
            _sweep(program)
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
            with suppress(BlockingIOError):
                while self.left and self._read(pipe):
                    pass


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode("ascii")
    data = len(data).to_bytes(4, "big") + data
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        os._exit(0)


def _close_all_but(keep: set[int]) -> None:
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 4096)


def _sweep(program: int) -> None:
    """End what a program has left behind: its group, and what the system made our children."""
    with suppress(OSError):
        os.killpg(program, signal.SIGKILL)
    until = time.monotonic() + SECONDS_TO_SWEEP
    while time.monotonic() < until:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            children = []
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0 if children else os.WNOHANG)
        except ChildProcessError:
            return
        if not children:
            return
