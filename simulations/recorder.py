"""Takes down when everything happened in a run, for pictures of it (`simulations.explain`).

A trace that listens: the ghost log knows what was sent, delivered and where each cut lay, and this adds the instants. It
only looks; a recorded run has the digest of the same run without a recorder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulations.options import Fault
from simulations.trace import Trace

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostCut, Stream

ENDED: Final = ("committed", "aborted")


@dataclass(slots=True)
class Times:
    """Instants of one stream's messages, by number from 0."""

    put: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MarkerSeen:
    """One marker."""

    epoch: int
    source: str
    target: str
    put: int
    arrived: int | None = None


@dataclass(slots=True, kw_only=True)
class EpochSeen:
    """What the replicated log said of an epoch, and when."""

    number: int
    at: dict[str, int] = field(default_factory=dict)
    """State -> instant, in the order in which they came."""
    why: str = ""
    """Of an abort: phase and cause."""

    @property
    def state(self) -> str:
        """The last one."""
        return list(self.at)[-1]


class Recorder(Trace):
    """Give one to `simulations.run.run`."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster: SimulatedCluster
        self.times: dict[Stream, Times] = {}
        self.markers: dict[tuple[int, int, int], MarkerSeen] = {}
        """By epoch and the two sessions."""
        self.epochs: dict[int, EpochSeen] = {}
        self.cuts: dict[int, dict[str, GhostCut]] = {}
        """Epoch -> participant -> its cut."""
        self.orders: dict[tuple[int, str], int] = {}
        """Epoch, participant -> when the order to start came."""
        self.stored: dict[tuple[int, str], int] = {}
        """Epoch, participant -> when its local snapshot was durable."""
        self.lives: dict[str, list[tuple[int, str, str]]] = {}
        """Participant or coordinator -> (instant, ``Started`` | ``Crashed`` | ``Ended``, in words)."""
        self.faults: list[tuple[int, Fault]] = []
        """As they began, without those that found nothing to harm."""
        self.leaders: list[tuple[int, str]] = []
        self._awaited: dict[str, dict[int, list[str]]] = {}
        """Participant -> epoch that it records -> sources whose marker has not come."""
        self._applied = 0

    def attach(self, cluster: SimulatedCluster) -> None:
        """Listen to this one, which has not begun."""
        self.cluster = cluster
        cluster.ghost.history = _StampedHistory(self)

    def note(self, now: int, who: str, what: str, detail: Any = "", mark: bytes = b"") -> None:  # noqa: ANN401 - as its base
        """As `Trace.note`; and keep what a picture shows."""
        super().note(now, who, what, detail, mark)
        match what:
            case "RecordLocal":
                self._cut(now, who, int(detail))
            case "StartEpoch":
                self.orders.setdefault((int(detail.epoch), who), now)
            case "LocalPersisted":
                self.stored.setdefault((int(detail.epoch), who), now)
            case "Started" | "Crashed" | "Ended":
                self.lives.setdefault(who, []).append((now, what, str(detail)))
                self._awaited.pop(who, None)
            case "BecameLeader":
                self.leaders.append((now, who))
            case _ if who == "fault":
                self._fault(now, detail)
            case _:
                pass
        if who in self._awaited:
            self._markers(now, who)
        if self.cluster.oracles.history.applied != self._applied:
            self._epochs(now)

    def moved(self, kind: str, stream: Stream, count: int) -> None:
        """Messages were put onto a stream, or delivered from it, just now."""
        times = self.times.get(stream)
        if times is None:
            times = self.times[stream] = Times()
        if kind == "send":
            times.put += [self.cluster.lives[stream.source].now] * count
        else:
            times.delivered += [self.cluster.lives[stream.target].now] * count

    def _cut(self, now: int, who: str, epoch: int) -> None:
        life = self.cluster.lives[who]
        ghost = self.cluster.ghost
        session = life.ghost.session
        self.cuts.setdefault(epoch, {})[who] = ghost.cuts[session, epoch]
        for stream in life.ghost.outgoing.values():
            key = (epoch, stream.source_session, stream.target_session)
            self.markers[key] = MarkerSeen(epoch=epoch, source=who, target=stream.target, put=now)
        self._awaited.setdefault(who, {})[epoch] = list(life.ghost.incoming)

    def _markers(self, now: int, who: str) -> None:
        """Which markers have come, by what the participant still waits for."""
        life = self.cluster.lives[who]
        recording = {int(progress.epoch): progress.open_channels for progress in life.machine.still_recording()}
        kept = {int(epoch) for epoch in life.machine.open_epochs}
        waiting = self._awaited[who]
        for epoch in list(waiting):
            if epoch not in kept:
                del waiting[epoch]  # dropped, or over
                continue
            open_channels = recording.get(epoch, ())
            for source in waiting[epoch]:
                stream = life.ghost.incoming.get(source)
                if source in open_channels or stream is None:
                    continue
                marker = self.markers.get((epoch, stream.source_session, stream.target_session))
                if marker is not None and marker.arrived is None:
                    marker.arrived = now
            waiting[epoch] = [source for source in waiting[epoch] if source in open_channels]
            if not waiting[epoch]:
                del waiting[epoch]
        if not waiting:
            del self._awaited[who]

    def _epochs(self, now: int) -> None:
        history = self.cluster.oracles.history
        self._applied = history.applied
        for number, state in history.states.items():
            seen = self.epochs.get(number)
            if seen is None:
                seen = self.epochs[number] = EpochSeen(number=number)
            if state in seen.at:
                continue
            seen.at[state] = now
            if state == "aborted":
                seen.why = self._why(number)

    def _why(self, number: int) -> str:
        for life in self.cluster.log.lives.values():
            record = life.ledger.epoch(number)
            if record is not None and record.abort is not None:
                return f"{record.abort.phase}: {record.abort.cause}"
        return ""

    def _fault(self, now: int, fault: Any) -> None:  # noqa: ANN401 - a note's detail
        """It is about to begin."""
        if not isinstance(fault, Fault):
            return
        if fault.kind == "pause":
            life = self.cluster.lives.get(fault.who)
            if life is None or not life.alive or life.asleep is not None:
                return
        self.faults.append((now, fault))


class _StampedHistory(list[Any]):
    """The ghost's history; each entry is told to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def append(self, entry: Any) -> None:  # noqa: ANN401 - as `GhostLog.history`
        """Keep it and pass it on."""
        super().append(entry)
        kind, _, stream, _, count = entry
        if stream is not None:
            self._recorder.moved(kind, stream, count)
