"""The template process in a sandbox, which forks a process for each program and watches it.

The template imports everything once, so that starting a program takes only a fork. The template
itself never runs a program. This module needs Linux. It uses only the standard library, because the
sandbox runs its source, perhaps in a container.
"""

# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH116, PTH120, PTH123, PTH207, PTH211

from __future__ import annotations

import ctypes
import fcntl
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
import struct
import sys
import tempfile
import time
from contextlib import suppress
from glob import glob
from typing import Any, NoReturn

from mellea_like.requirements.code.harness import work
from mellea_like.requirements.code.pytest_parts import install

SAYS = 100
"""The file descriptor to which the harness in a program's process writes its reports."""

SECONDS_TO_SWEEP = 5.0
"""How long to look for processes that a program left behind, if no namespace ends them."""

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
NEWNS, NEWIPC = 0x0002_0000, 0x0800_0000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 2, 4, 4096, 16384
DEATHSIG, DUMPABLE, SECCOMP, SUBREAPER, NO_NEW_PRIVS = 1, 4, 22, 36, 38

# <linux/seccomp.h>, <linux/bpf_common.h>: load a word, jump if equal, greater, or a bit is set.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, NO_SUCH_CALL = 0x7FFF_0000, 0x0005_0001, 0x0005_0026

# By machine: its number, clone, and system calls that no program of a check needs: unshare, setns,
# ptrace, keyctl, add_key, request_key, bpf, perf_event_open, userfaultfd, mount, umount2.
CALLS = {
    "x86_64": (0xC000_003E, 56, (272, 308, 101, 250, 248, 249, 321, 298, 323, 165, 166)),
    "aarch64": (0xC000_00B7, 220, (97, 268, 117, 219, 217, 218, 280, 241, 282, 40, 39)),
}
CLONE3, IO_URING_SETUP, ANY_NAMESPACE = 435, 425, 0x7E02_0000

_LIBC = ctypes.CDLL(None, use_errno=True)


def serve(settings: dict[str, Any]) -> NoReturn:
    """Run jobs from standard input until it ends, with the ``settings`` of a `Sandbox`."""
    install()
    os.umask(0o022)
    sys.executable = os.path.realpath(sys.executable)
    try:
        template = _Template(settings)
        template.begin()
    except (AttributeError, OSError, ImportError) as exc:
        _send({"trouble": f"{type(exc).__name__}: {exc}"})
        os._exit(0)
    while True:
        _send(template.run(template.receive()))


def _call(name: str, *args: Any) -> None:
    if getattr(_LIBC, name)(*args) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _show_only(paths: list[str], links: list[str]) -> None:
    """Change to a read-only root directory with only ``paths``, and ``links`` that lead to /box."""
    with socket.socket() as connection:  # The loopback device is up: SIOCSIFFLAGS, IFF_UP.
        fcntl.ioctl(connection, 0x8914, struct.pack("16sh22x", b"lo", 1))
    base = "/sys"  # It always exists and is never shown.
    _call("mount", b"tmpfs", base.encode(), b"tmpfs", MS_NOSUID, b"size=1m,mode=755")
    os.mkdir(f"{base}/box")
    for path in (*paths, *map(os.path.realpath, paths)):
        if os.path.exists(path) and not os.path.exists(base + path):
            os.makedirs(
                base + (path if os.path.isdir(path) else os.path.dirname(path)), 0o755, True
            )
            if not os.path.isdir(path):
                os.close(os.open(base + path, os.O_CREAT))
            _call("mount", path.encode(), (base + path).encode(), None, MS_BIND | MS_REC, None)
    for link in links:
        os.symlink("/box", base + link)
    os.chdir(base)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", 2)  # MNT_DETACH
    os.chdir("/")
    attributes = (ctypes.c_uint64 * 4)(1 | 2, 0, 0, 0)  # Read-only and without set-user-id.
    size, number = ctypes.c_size_t(32), ctypes.c_long(442)  # mount_setattr, AT_RECURSIVE
    _call("syscall", number, -100, b"/", 0x8000, ctypes.byref(attributes), size)


def _drop_privileges(user: int) -> None:
    """Give up all privileges that a program could use against the system."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if not os.access(os.__file__, os.R_OK):
        msg = (
            f"unprivileged users can't read {os.__file__}: install Python elsewhere, or don't run"
            " as root"
        )
        raise PermissionError(msg)
    _call("prctl", DEATHSIG, signal.SIGKILL, 0, 0, 0)
    _call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("capset", (ctypes.c_uint32 * 2)(0x2008_0522, 0), (ctypes.c_uint32 * 6)())
    if platform.machine() not in CALLS:
        return
    machine, clone, calls = CALLS[platform.machine()]
    refuse = (RETURN, 0, 0, REFUSE)
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, machine), refuse, (LOAD, 0, 0, 0)]
    steps += [(AT_LEAST, 0, 1, 0x4000_0000), refuse]  # The system calls of x32.
    for number in (*calls, IO_URING_SETUP):
        steps += [(EQUAL, 0, 1, number), refuse]
    steps += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, NO_SUCH_CALL)]  # The C library falls back.
    steps += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY_BIT, 0, 1, ANY_NAMESPACE), refuse]
    steps += [(RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    _call("prctl", SECCOMP, 2, ctypes.create_string_buffer(program), 0, 0)


class _Template:
    """The template process, which runs one program at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.inbox = b""
        self.walled = settings["way"] != "limits"
        if settings["way"] == "unshare":
            _show_only(settings["shown"], settings["links"])
        if self.walled:  # bwrap's --die-with-parent would end it with the thread that started it.
            _call("prctl", DEATHSIG, signal.SIGKILL, 0, 0, 0)
        _call("prctl", SUBREAPER, 1, 0, 0, 0)
        _call("prctl", DUMPABLE, 0, 0, 0, 0)
        sys.path += settings["path"]
        for name in settings["preload"]:
            importlib.import_module(name)

    def begin(self) -> None:
        """Run a program that does nothing, and report which limits are in force."""
        os.environ.clear()
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        gc.collect()
        gc.freeze()
        # The limit counts a user's threads. So under root, each template has its own user, or
        # "nobody" if that isn't possible.
        strangers = (0x7000_0000 + int.from_bytes(os.urandom(4), "big") % 2**20, 65534)
        trouble = ""
        for self.user in (os.geteuid(),) if os.geteuid() else strangers:
            nothing = dict.fromkeys(("program", "stdin", "secret"), "")
            found = self.run({**nothing, "tests": (), "function": None, "seconds": 10, "wall": 10})
            trouble = json.loads(found["said"] or "{}").get("trouble") or found["stderr"]
            if not trouble:
                break
        seccomp = platform.machine() in CALLS
        _send({"trouble": trouble, "user": self.user, "seccomp": seccomp})

    def receive(self) -> dict[str, Any]:
        """Wait for a job, skipping empty lines (late cancellations); exit when the input ends."""
        while b"\n" not in self.inbox.lstrip():
            if not self.hear():
                os._exit(0)
        line, _, self.inbox = self.inbox.lstrip().partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def hear(self) -> bool:
        """Read more of standard input; return False at its end."""
        more = os.read(0, 2**20)
        self.inbox += more
        return bool(more)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a program in a forked process, make sure that it ends, and return a report."""
        names = ("stdin", "stdout", "stderr", "said")
        files = {name: os.memfd_create(name) for name in names}
        with open(files["stdin"], "wb", closefd=False) as file:
            file.write(job["stdin"].encode("utf-8", "replace"))
        os.lseek(files["stdin"], 0, os.SEEK_SET)
        place = "/box" if self.walled else tempfile.mkdtemp()
        if not self.walled:
            os.chown(place, self.user, -1)
        began = time.monotonic()
        program = os.fork()
        if program == 0:
            self._program(job, place, list(files.values()))
        ended = self._watch(program, job, began)
        with suppress(OSError):
            os.kill(program, signal.SIGKILL)
        status = os.waitpid(program, 0)[1]
        self._sweep()
        found: dict[str, Any] = {"ended": ended, "status": os.waitstatus_to_exitcode(status)}
        for name in names[1:]:
            most = 2**26 if name == "said" else self.settings["output"] + 1
            found[name] = os.pread(files[name], most, 0).decode("utf-8", "replace")
        for descriptor in files.values():
            os.close(descriptor)
        if not self.walled:
            shutil.rmtree(place, ignore_errors=True)
        return found | {"seconds": time.monotonic() - began}

    def _watch(self, program: int, job: dict[str, Any], began: float) -> str:
        """Wait until a program ends or must be ended; return how it ended."""
        exited = os.pidfd_open(program)
        try:
            while True:
                used = 0.0
                # The time of all its threads: CPUCLOCK_SCHED of <posix-timers.h>.
                with suppress(OSError):
                    used = time.clock_gettime(~program << 3 | 2)
                left = job["seconds"] - used, job["wall"] + began - time.monotonic()
                if min(left) <= 0:
                    return "processor" if left[0] <= 0 else "time"
                ready = select.select([0, exited], [], [], max(min(left), 0.01))[0]
                if exited in ready:
                    return "itself"
                if ready:
                    self.hear()
                    return "cancelled"
        finally:
            os.close(exited)

    def _sweep(self) -> None:
        """Kill all processes that a program has left behind."""
        until = time.monotonic() + SECONDS_TO_SWEEP
        with suppress(ChildProcessError, ProcessLookupError):
            while time.monotonic() < until:
                if self.walled:
                    os.kill(-1, signal.SIGKILL)
                else:
                    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                        for pid in file.read().split():
                            os.kill(int(pid), signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.001)

    def _threads(self) -> int:
        """Return the number of the user's threads, all of which count toward the process limit."""
        count = 0
        for task in glob("/proc/[0-9]*/task/*"):
            with suppress(OSError):
                count += os.stat(task).st_uid == self.user
        return count

    def _program(self, job: dict[str, Any], place: str, files: list[int]) -> NoReturn:
        """Turn this forked process into the program: set up its files and limits, and run it."""
        for file, place_of in zip(files, (0, 1, 2, SAYS), strict=True):
            os.dup2(file, place_of)
        os.closerange(3, SAYS)
        os.closerange(SAYS + 1, 4096)
        try:
            self._confine(job, place)
        except BaseException as exc:  # noqa: BLE001 (told to the template)
            said = {"trouble": f"{type(exc).__name__}: {exc}", "secret": job["secret"]}
            os.write(SAYS, json.dumps(said).encode())
            os._exit(0)
        tempfile.tempdir = None
        os.environ.update(HOME=place, TMPDIR=place, LANG="C.UTF-8", OPENBLAS_NUM_THREADS="1")
        work(job, SAYS)

    def _confine(self, job: dict[str, Any], place: str) -> None:
        """Take away from this process all rights and resources that a program must not have."""
        settings = self.settings
        os.setsid()
        others = 0
        if self.walled:
            _call("unshare", NEWNS | NEWIPC)
            options = f"size={settings['files']},nr_inodes=4096,mode=700,uid={self.user}"
            flags = MS_NOSUID | MS_NODEV
            _call("mount", b"tmpfs", place.encode(), b"tmpfs", flags, options.encode())
        else:
            others = self._threads()
        os.chdir(place)
        limits = {
            "AS": settings["memory"],
            "CORE": 0,
            "CPU": int(job["seconds"]) + 2,
            "FSIZE": max(settings["files"], settings["output"] + 1),
            "NOFILE": 128,
            "NPROC": others + 4 + settings["processes"],
            "MSGQUEUE": 0,
        }
        for name, limit in limits.items():
            with suppress(OSError, ValueError):  # The limit is already lower.
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        _drop_privileges(self.user)


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode("ascii") + b"\n"
    with suppress(OSError):
        while data:
            data = data[os.write(1, data) :]
