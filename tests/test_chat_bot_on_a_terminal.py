"""examples/chat_bot.py on a real pseudo-terminal: someone types, and leaves."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from command_line import Terminal

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "chat_bot.py"
# No "-W error": an import that Ctrl-C interrupts leaves an open file, which is no fault of ours.
# The terminal becomes its session's own, so that Ctrl-C is heard.
TAKE_IT = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
COMMAND = (sys.executable, "-c", TAKE_IT, sys.executable, str(SCRIPT))
HELLO = "bot: Let us talk. Ctrl-D or Ctrl-C leaves."
ANSWER = re.compile(r"^bot: \S.*\.  \[(\d+ lines?), \d+ drafts?\]$", re.MULTILINE)


def terminal(*arguments: str) -> Terminal:
    return Terminal(*arguments, command=COMMAND, pipe=False)


def answers(seen: Terminal) -> list[str]:
    return ANSWER.findall(seen.seen.replace("\r\n", "\n"))


def test_three_lines_typed_quickly_get_one_answer_and_a_later_one_another():
    with terminal() as chat:
        chat.wait_for(HELLO)
        for line in ("Good evening!", "Where does the heron stand,", "and what does it wait for?"):
            chat.type(f"{line}\n")
        chat.wait_for("drafts]\r\n")  # Else the next line is echoed into it.
        assert answers(chat) == ["3 lines"]
        chat.type("Tell me of the lighthouse.\n")
        chat.type("\x04")
        code, _ = chat.finish()
        assert code == 0, chat.seen
        assert answers(chat) == ["3 lines", "1 line"]
        assert "bot: Bye. 4 lines, 2 answers." in chat.seen


@pytest.mark.parametrize("typed", ["", "Hello?\n", "half a li"])
def test_ctrl_c_leaves_at_once_and_cleanly(typed):
    with terminal() as chat:
        chat.wait_for(HELLO)
        chat.type(typed)
        chat.wait_for(typed.strip())
        chat.type("\x03")
        code, _ = chat.finish()
    assert code == 0, chat.seen
    assert chat.seen.rstrip().endswith("bot: Bye.")
    assert "Traceback" not in chat.seen


def test_a_file_that_is_not_there_is_an_error_in_one_line(tmp_path):
    with terminal(str(tmp_path / "missing.txt")) as chat:
        code, _ = chat.finish()
    assert code == 1
    assert chat.seen.startswith("No chat: ")
    assert chat.seen.count("\n") == 1
