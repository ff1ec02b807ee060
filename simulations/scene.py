"""What of a recorded run is shown: the epoch, the window around its cut, and in it what fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from protocol.contents import decode_envelope
from simulations.diagram import COORDINATORS, Arrow, Mark, Scene, Span
from simulations.faults import KINDS
from simulations.world import MS

if TYPE_CHECKING:
    from simulations.ghost import GhostCut, Stream
    from simulations.options import Fault, Options
    from simulations.recorder import EpochSeen, Recorder
    from simulations.run import Outcome

ARROWS_MAX: Final = 400
"""More are a carpet; and 250 bytes each."""
BEFORE_END_NS: Final = 200 * MS
"""Shown before a violation that names no epoch."""
_SHOWN_OTHERWISE: Final = ("crash", "crash-at", "crash-coordinator", "crash-leader", "crash-coordinators", "pause")
_LASTING: Final = ("pause-coordinator", "half-open")
_RANKS: Final = {"orphan": 0, "flight": 1, "marker": 2, "order": 3, "message": 4, "other": 4}


class NothingToShow(Exception):
    """There is no such epoch or window; the text says what there is."""


def scene_of(
    recorder: Recorder, outcome: Outcome, *, epoch: int | None = None, begin: int | None = None, end: int | None = None
) -> Scene:
    """Choose what to show.

    Args:
        recorder: Of the run.
        outcome: What came of it.
        epoch: Whose cut; None: the violation's, else the last committed one, of those with messages in flight if any.
        begin: Of the window, ns; None: some time before the cut.
        end: Of the window, ns; None: some time after it.

    Raises:
        NothingToShow: See there.
    """
    return _Choice(recorder, outcome, epoch, begin, end).scene()


class _Choice:
    def __init__(
        self, recorder: Recorder, outcome: Outcome, epoch: int | None, begin: int | None, end: int | None
    ) -> None:
        self.recorder = recorder
        self.outcome = outcome
        self.options: Options = recorder.cluster.options
        self.epoch = self._choose(epoch)
        self.cuts: dict[str, GhostCut] = recorder.cuts.get(self.epoch.number, {}) if self.epoch is not None else {}
        self.flights = {stream: range(*self._between(stream)) for stream in recorder.times}
        self.begin, self.end = self._window()
        self.begin = self.begin if begin is None else begin
        self.end = self.end if end is None else end
        if self.begin >= self.end:
            raise NothingToShow(f"the window from {self.begin / 1e6:.3f} to {self.end / 1e6:.3f} ms is empty")

    # --- which epoch, and which part of time --------------------------------------------------------------------------

    def _choose(self, wanted: int | None) -> EpochSeen | None:
        epochs = self.recorder.epochs
        if wanted is not None:
            if wanted not in epochs:
                have = f"it has {min(epochs)} to {max(epochs)}" if epochs else "it has none"
                raise NothingToShow(f"there is no epoch {wanted} in this run; {have}")
            return epochs[wanted]
        named = re.search(r"epoch (\d+)", self.outcome.text)
        if named is not None and int(named[1]) in epochs:
            return epochs[int(named[1])]
        committed = [number for number, seen in epochs.items() if seen.state == "committed"]
        if not self.outcome.ok:
            return None  # it is not about a cut
        if not committed:
            return epochs[max(epochs)] if epochs else None
        busy = [number for number in committed if self._in_flight(number)]
        return epochs[max(busy or committed)]

    def _in_flight(self, number: int) -> int:
        cuts = self.recorder.cuts.get(number, {})
        return sum(max(0, sent - received) for sent, received in (_positions(cuts, s) for s in self.recorder.times))

    def _between(self, stream: Stream) -> tuple[int, int]:
        """Numbers of the messages that one side of the cut has and the other has not."""
        sent, received = _positions(self.cuts, stream)
        return min(sent, received), max(sent, received)

    def _window(self) -> tuple[int, int]:
        last = max(1, self.outcome.virtual_ns)
        if self.epoch is None:
            return max(0, last - BEFORE_END_NS), last + BEFORE_END_NS // 20
        log = self.epoch.at
        inner = [cut.at for cut in self.cuts.values()]
        inner += [
            marker.arrived
            for marker in self.recorder.markers.values()
            if marker.epoch == self.epoch.number and marker.arrived is not None
        ]
        if not inner:
            inner = list(log.values())
        begin, end = min(inner), max(inner)
        reach = max(MS, end - begin)
        if "started" in log:
            begin = max(begin - reach, min(begin, log["started"]))
        for stream, numbers in self.flights.items():
            times = self.recorder.times[stream]
            for number in numbers:
                begin = max(begin - 2 * reach, min(begin, times.put[number]))
                if number < len(times.delivered):
                    end = min(end + 2 * reach, max(end, times.delivered[number]))
        for at in log.values():
            if at <= end + 2 * reach:
                end = max(end, at)
        margin = max(MS // 2, (end - begin) // 6)
        return max(0, begin - margin), end + margin

    # --- the scene ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        arrows = self._messages() + self._markers() + self._orders()
        middle = [cut.at for cut in self.cuts.values()] or [(self.begin + self.end) // 2]
        centre = sum(middle) // len(middle)
        arrows.sort(key=lambda arrow: (_RANKS[arrow.role], abs(arrow.put - centre)))
        left_out = arrows[ARROWS_MAX:]
        notes = []
        if left_out:
            notes.append(
                f"{len(left_out)} of {len(arrows)} arrows in this window are left out, those farthest from the cut first; "
                "--from and --to choose a smaller window."
            )
        arrows = arrows[:ARROWS_MAX]
        arrows.sort(key=lambda arrow: (arrow.put, arrow.source, arrow.target, arrow.title))
        number = "its end" if self.epoch is None else f"epoch {self.epoch.number}, {self.epoch.state}"
        return Scene(
            title=f"Seed {self.options.seed}: {number}",
            caption=self._caption(),
            begin=self.begin,
            end=self.end,
            participants=list(self.recorder.cluster.participants),
            arrows=arrows,
            marks=self._cut_marks() + self._life_marks() + self._log_marks(),
            spans=self._alive() + self._fault_spans(),
            broken_at=None if self.outcome.ok else self.outcome.virtual_ns,
            notes=notes,
        )

    def _caption(self) -> list[str]:
        lines = []
        if not self.outcome.ok:
            lines.append(_short(f"{self.outcome.kind}: {self.outcome.text}"))
        if self.cuts:
            flights = orphans = 0
            for stream in self.flights:
                sent, received = _positions(self.cuts, stream)
                flights += max(0, sent - received)
                orphans += max(0, received - sent)
            lines.append(
                f"{len(self.cuts)} participants recorded themselves, each at a moment of its own (dots): the line through them is "
                "the cut. A marker follows on each channel,"
            )
            many = "1 message crosses" if flights == 1 else f"{flights or 'No'} messages cross"
            lines.append(
                f"so that its receiver knows what was sent before. {many} the cut from left to right: sent before, delivered "
                "after, thus recorded with it."
            )
            lines.append(
                "No message crosses it from right to left: what the cut holds as received, it also holds as sent."
                if not orphans
                else f"{orphans} cross it from right to left: received before the cut, sent after it. This cut is inconsistent."
            )
        if self.epoch is not None and self.epoch.why:
            lines.append(_short(f"Aborted: {self.epoch.why}"))
        return lines

    # --- arrows -------------------------------------------------------------------------------------------------------

    def _messages(self) -> list[Arrow]:
        found: list[Arrow] = []
        for stream, times in self.recorder.times.items():
            sent, received = _positions(self.cuts, stream)
            for number, put in enumerate(times.put):
                arrived = times.delivered[number] if number < len(times.delivered) else None
                role = "message"
                if received <= number < sent:
                    role = "flight"
                elif sent <= number < received:
                    role = "orphan"
                # What is in flight for ever goes on behind the cut.
                if not self._visible(put, self.end if arrived is None and role == "flight" else arrived):
                    continue
                found.append(
                    Arrow(
                        source=stream.source,
                        target=stream.target,
                        put=put,
                        arrived=arrived,
                        role=role,
                        title=_message_title(stream, number, put, arrived, role),
                    )
                )
        return found

    def _markers(self) -> list[Arrow]:
        chosen = self.epoch.number if self.epoch is not None else 0
        return [
            Arrow(
                source=marker.source,
                target=marker.target,
                put=marker.put,
                arrived=marker.arrived,
                role="marker" if marker.epoch == chosen else "other",
                title=f"marker of epoch {marker.epoch} on {marker.source} → {marker.target}\n"
                + _times(marker.put, marker.arrived, "the epoch had ended"),
            )
            for marker in self.recorder.markers.values()
            if self._visible(marker.put, marker.arrived)
        ]

    def _orders(self) -> list[Arrow]:
        if self.epoch is None:
            return []
        started = self.epoch.at.get("started")
        return [
            Arrow(
                source=COORDINATORS,
                target=who,
                put=started,
                arrived=at,
                role="order",
                title=f"order to start epoch {number}, at {who} {_ms(at)}",
            )
            for (number, who), at in self.recorder.orders.items()
            if number == self.epoch.number and started is not None and self._visible(started, at)
        ]

    def _visible(self, put: int, arrived: int | None) -> bool:
        return put <= self.end and (put if arrived is None else arrived) >= self.begin

    # --- instants -----------------------------------------------------------------------------------------------------

    def _cut_marks(self) -> list[Mark]:
        chosen = self.epoch.number if self.epoch is not None else 0
        marks: list[Mark] = []
        for number, cuts in self.recorder.cuts.items():
            for who, cut in cuts.items():
                if number != chosen and not self.begin <= cut.at <= self.end:
                    continue
                by = sorted(
                    marker.source
                    for marker in self.recorder.markers.values()
                    if (marker.epoch, marker.target, marker.arrived) == (number, who, cut.at)
                )
                cause = f"on the marker of {by[0]}" if by else "on the coordinator's order"
                mailboxes = sum(len(each) for each in cut.mailboxes.values())
                title = (
                    f"{who} records itself for epoch {number}, {cause}\n{_ms(cut.at)}, session {cut.session}, "
                    f"{len(cut.states)} agents, {mailboxes} messages in mailboxes"
                )
                marks.append(Mark(who=who, at=cut.at, kind="cut" if number == chosen else "othercut", title=title))
        for (number, who), at in self.recorder.stored.items():
            if number == chosen and self.begin <= at <= self.end:
                title = f"the local snapshot of {who} for epoch {number} is durable\n{_ms(at)}"
                marks.append(Mark(who=who, at=at, kind="stored", title=title))
        return marks

    def _life_marks(self) -> list[Mark]:
        marks: list[Mark] = []
        participants = self.recorder.cluster.participants
        for who, events in self.recorder.lives.items():
            for at, what, words in events:
                if not self.begin <= at <= self.end:
                    continue
                lane = who if who in participants else COORDINATORS
                if what == "Started" and lane == COORDINATORS:
                    continue
                kind = "crash" if what == "Crashed" else "tick"
                title = f"{who} {what.lower()}: {words}\n{_ms(at)}"
                marks.append(Mark(who=lane, at=at, kind=kind, title=title, label=f"{who} {what.lower()}"))
        return marks

    def _log_marks(self) -> list[Mark]:
        marks: list[Mark] = []
        chosen = self.epoch.number if self.epoch is not None else 0
        for number, seen in self.recorder.epochs.items():
            for state, at in seen.at.items():
                if number != chosen and not self.begin <= at <= self.end:
                    continue
                label = state if number == chosen else f"epoch {number} {state}"
                title = f"epoch {number} {state}\n{_ms(at)}" + (f"\n{seen.why}" if state == "aborted" else "")
                marks.append(Mark(who=COORDINATORS, at=at, kind=state, title=title, label=label))
        marks += [
            Mark(who=COORDINATORS, at=at, kind="leader", title=f"{who} leads\n{_ms(at)}", label=f"{who} leads")
            for at, who in self.recorder.leaders
            if self.begin <= at <= self.end
        ]
        return marks

    # --- stretches ----------------------------------------------------------------------------------------------------

    def _alive(self) -> list[Span]:
        spans: list[Span] = []
        for who in self.recorder.cluster.participants:
            since: int | None = None
            for at, what, _ in self.recorder.lives.get(who, []):
                if what == "Started":
                    since = at
                elif since is not None:
                    spans.append(Span(who=who, begin=since, end=at, kind="alive", title=""))
                    since = None
            if since is not None:
                spans.append(Span(who=who, begin=since, end=max(self.end, since), kind="alive", title=""))
        return [span for span in spans if span.begin <= self.end and span.end >= self.begin]

    def _fault_spans(self) -> list[Span]:
        spans: list[Span] = []
        for at, fault in self.recorder.faults:
            lasts = fault.kind == "pause" or fault.kind in _LASTING or KINDS[fault.kind][1] is not None
            # Healing ends whatever lasts.
            over = min(at + fault.for_ns, max(at, self.options.faults_ns)) if lasts else at
            if at > self.end or over < self.begin:
                continue
            title = f"{_fault_words(fault)}\n{_ms(at)}" + (f" to {_ms(over)}" if lasts else "")
            if fault.kind == "pause":
                ends = [moment for moment, what, _ in self.recorder.lives.get(fault.who, []) if what != "Started"]
                over = min([over, *(moment for moment in ends if moment >= at)])
                spans.append(Span(who=fault.who, begin=at, end=over, kind="pause", title=title))
                continue
            if fault.kind in {"partition", "block"}:
                whom = [fault.who] if fault.kind == "partition" else [fault.who, fault.other]
                spans += [Span(who=who, begin=at, end=over, kind="partition", title=title) for who in whom]
            if fault.kind not in _SHOWN_OTHERWISE:
                spans.append(Span(who="", begin=at, end=over, kind="fault", title=title, label=_fault_words(fault)))
        return spans


def _positions(cuts: dict[str, GhostCut], stream: Stream) -> tuple[int, int]:
    """Messages that the cut has as sent on this stream, and as received; equal if it is none of the cut's channels."""
    source, target = cuts.get(stream.source), cuts.get(stream.target)
    if source is None or target is None:
        return 0, 0
    if (source.session, target.session) != (stream.source_session, stream.target_session):
        return 0, 0
    return source.sent.get(stream, 0), target.received.get(stream, 0)


def _message_title(stream: Stream, number: int, put: int, arrived: int | None, role: str) -> str:
    envelope = decode_envelope(stream.sent[number], "a message of the run")
    what = {"flight": "in flight at the cut\n", "orphan": "orphan: received before the cut, sent after it\n"}.get(
        role, ""
    )
    return (
        f"{what}message {envelope.id.hex()}, number {number + 1} on {stream.source} → {stream.target} (sessions "
        f"{stream.source_session}, {stream.target_session})\n{envelope.source} → {envelope.target}: {envelope.type}\n"
        + _times(put, arrived)
    )


def _times(put: int, arrived: int | None, otherwise: str = "the run had") -> str:
    if arrived is None:
        return f"put {_ms(put)}, not taken: a session had ended, or {otherwise}"
    return f"put {_ms(put)}, arrived {_ms(arrived)}, {(arrived - put) / 1e6:.3f} ms on the way"


def _fault_words(fault: Fault) -> str:
    ends = " → ".join(name for name in (fault.who, fault.other) if name)
    return " ".join(word for word in (fault.kind, ends, fault.point) if word)


def _ms(at: int) -> str:
    return f"{at / 1e6:,.3f} ms"


def _short(line: str) -> str:
    return line if len(line) <= 170 else line[:169] + "…"
