"""Items that wait for their next draw, and how they continue from a journal.

How a call with one lane continues depends only on the records of its draws, because `repair` is
pure. So an item can be set aside after any draw, and continued later from those records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from anyio.lowlevel import checkpoint

from mellea_like.batch.intake import END
from mellea_like.batch.item import IdSet, Job
from mellea_like.batch.journal.identity import differing_part, digest_of
from mellea_like.batch.journal.records import standing
from mellea_like.core.conversation import Context, Message
from mellea_like.core.prompts import recorded_message
from mellea_like.core.recorded import recorded_requirement
from mellea_like.core.serialization import slice_from_dict
from mellea_like.core.slice import Outcome
from mellea_like.errors import JournalError, LimitExceeded, MelleaError
from mellea_like.sampling import why_not_together

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from mellea_like.batch.intake import Intake
    from mellea_like.batch.item import Paused, Work
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.core.slice import Slice
    from mellea_like.report.views import SliceView
    from mellea_like.sampling.prepare import Settings

MANY = 100
"""The number of items to go through before other tasks get a chance to run."""

BLOCK = 64
"""The number of waiting items to read from a journal at a time."""

KEPT = 4096
"""The maximum number of waiting items whose calls stay in memory, at about 6 KB each."""

NOT_READ: Final = object()
"""In place of an item whose job was made from the journal alone."""

_TO_GO_ON = (Outcome.FAILED, Outcome.ERRORED)


def why_not_in_rounds(
    features: Mapping[str, str], *, rounds: str = "breadth_first=True", marks: bool = False
) -> str | None:
    """Return the reason why a call can't be set aside between its draws; None if it can be.

    ``features`` are named as in `EXCLUSIONS`; ``rounds`` is the user's name for rounds. ``marks``
    is whether the run stores the scores or weights that the selection gives to draws.
    """
    features = {**features, "rounds": rounds}
    if marks:
        features.pop("scored", None)
    return why_not_together(features)


def earlier_draws(stored: StoredItem, work: Work, *, passed: bool = False) -> Job:
    """Return the job of an unfinished item, but without the item, with the draws to continue from.

    The last draws are left out if they must be repeated: they were cancelled, they passed (unless
    ``passed`` is true, or the selection waits for more draws), or they had a permanent error
    (unless it ended only a stage of an escalation). If texts aren't kept, all draws are left out.
    """
    settings = work.strategy.settings
    several = passed or settings.chooser is not None
    rows = standing(stored.slices)
    lacks_text = any(s.text is None for _, s in rows if s.judged)
    nothing = Context()
    try:
        slices = [
            slice_from_dict(s.plain, work.format, nothing, _sent(s), recorded_requirement)
            for _, s in ([] if lacks_text else rows)
        ]
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the journal's record of item {stored.id} can't be read: {exc!r}"
        raise JournalError(msg) from exc
    broken = bool(settings.stages) and not (slices and _ended_stages(slices[-1], settings))
    while slices and not (
        (several and slices[-1].passed)
        or (slices[-1].outcome in _TO_GO_ON and (broken or slices[-1].may_continue))
    ):
        slices.pop()
    # If draws of the last attempt are left out, the draws that replace them need a new attempt.
    void = any(attempt == stored.attempts for attempt, _ in rows[len(slices) :])
    attempt = stored.attempts + (void or not slices)
    earlier = tuple(slices)
    return Job(stored.id, NOT_READ, None, None, stored.digest, attempt, earlier, waited=True)


def _sent(s: SliceView) -> tuple[Message, ...]:
    """Return the messages of a draw as far as its record has them: its rounds of tools."""
    rounds = tuple(map(recorded_message, s.rounds))
    return (Message("user", s.action), *rounds) if rounds else ()


def _ended_stages(slice_: Slice, settings: Settings) -> bool:
    """Return whether a draw has ended an escalation with a permanent error."""
    of_last = slice_.stage == len(settings.stages) - 1
    return of_last and slice_.outcome is Outcome.ERRORED and not slice_.may_continue


def not_refused(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Leave out the last draws if a spent budget refused their judge: they must be repeated."""
    count = len(slices)
    while count and _is_refused(slices[count - 1].error):
        count -= 1
    return slices[:count]


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is, or was caused by, a budget's refusal."""
    while error is not None and not isinstance(error, LimitExceeded):
        error = error.__cause__
    return error is not None


def resumed(job: Job, stored: StoredItem, work: Work) -> Job:
    """Return a job that continues from an earlier run's draws or, if it can't, starts again.

    If it starts again, or repeats draws whose judge a budget refused, it doesn't wait for a round.
    """
    job = job._replace(attempt=stored.attempts + 1)
    found = earlier_draws(stored, work).earlier
    earlier = not_refused(found)
    if not earlier or len(earlier) >= work.strategy.settings.loop_budget:
        return job
    return job._replace(earlier=earlier, waited=len(earlier) == len(found))


class Waiting:
    """Keeps the items that wait for their next draw: in memory or, if many, in the journal."""

    def __init__(self, intake: Intake, earlier: Callable[[StoredItem], Job]) -> None:
        self._intake = intake
        self._earlier = earlier
        self._here: dict[int, Job] = {}
        self._block: dict[int, Job] = {}
        self._looked_up = -1
        self._ended = IdSet()
        """The items that have ended in this run. If the journal doesn't keep an item's error, the
        item is unfinished there, but isn't waiting."""

    def after_turn(self, job: Job, paused: Paused | None) -> None:
        """Keep an item that is paused after its turn; ``paused`` is None if the item has ended."""
        if paused is None:
            self._ended.add(job.id)
            return
        journal, tally = self._intake.journal, self._intake.tally
        tally.waiting += 1
        for slice_ in paused.slices[len(job.earlier) :]:
            tally.usage += slice_.usage
        room = len(self._here) < KEPT
        if room or journal is None:
            call = paused.call if room else None
            self._here[job.id] = job._replace(call=call, earlier=paused.slices, waited=True)
        if journal is None:
            self._stored(None)
        else:
            journal.pause(job.id, job.attempt, paused.slices, self._stored)

    def _stored(self, error: JournalError | None) -> None:
        if error is not None:
            self._intake.abort(error)
        else:
            self._intake.window.release()
            self._intake.tally.changed()

    async def _find(self, item_id: int, draws: int | None) -> Job | None:
        """Return an item's job if it waits, after ``draws`` draws; in a round, look up in order."""
        job = self._here.get(item_id)
        journal = self._intake.journal
        if job is None and journal is not None and item_id not in self._ended:
            if item_id > self._looked_up:
                found = await journal.unfinished(item_id, BLOCK)
                self._block = {stored.id: self._earlier(stored) for stored in found}
                self._looked_up = found[-1].id if len(found) == BLOCK else 2**63
            job = self._block.get(item_id)
        if job is None or draws not in {None, len(job.earlier)}:
            return None
        self._here.pop(item_id, None)
        return job

    async def queue_again(
        self, *, draws: int | None = None, due: Container[int] | None = None
    ) -> None:
        """Go through the source again, and queue the items in ``due``, or after ``draws`` draws."""
        self._looked_up = -1
        self._block.clear()
        taken, window = self._intake.tally.taken, self._intake.window
        async with self._intake.source.once() as next_item:
            await window.acquire()
            for position in range(taken):
                if (item := await next_item()) is END:
                    raise self._intake.source.ended_early(taken, position)
                found = (
                    await self._find(position, draws) if due is None or position in due else None
                )
                if found is not None:
                    self._intake.queue(self._again(found, item))
                    await window.acquire()
                if position % MANY == 0:
                    await checkpoint()
            window.release()

    def _again(self, kept: Job, item: Any) -> Job:
        """Return a waiting item's job; raise if the source's item has changed."""
        if item is kept.item or (isinstance(item, str) and item == kept.item):
            return kept
        job = self._intake.job(kept.id, item)
        now = job.digest or digest_of(item, job.action)
        before = kept.digest or digest_of(kept.item, kept.action)
        if now != before:
            msg = (
                f"the {differing_part(before, now)} at position {kept.id} has changed since the"
                " first round: a source must give the same items in the same order in each round"
            )
            raise MelleaError(msg)
        return kept._replace(item=job.item, action=job.action, error=job.error)
