"""What is checked, and with what result: the configurations of `cut.pml`, its planted bugs and its rare states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A system that is explored completely and must be without error."""

    name: str
    switches: str
    """As in `cut.pml`, without ``-D``."""
    states: int
    """Distinct states of the complete search, exactly: a rule that went missing, or a fault that no longer happens, changes it."""
    about: str
    quick: bool = True
    """Runs with the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A system with one rule broken; the search must end in an assertion of one of these invariants."""

    name: str
    switches: str
    invariant: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A rare state that the search must reach, or the configurations check less than they say."""

    name: str
    switches: str


CONFIGURATIONS = (
    Configuration(
        name="cut", switches="SENDS=2", states=269_082, about="everybody to everybody, one initiator, two sends each"
    ),
    Configuration(
        name="orders", switches="ALLSTART", states=319_989, about="start orders to all, markers may be first"
    ),
    Configuration(
        name="chain",
        switches="CHAIN ALLSTART SENDS=2 EPOCHS=2 ABORTS=1",
        states=135_421,
        about="not strongly connected",
    ),
    Configuration(
        name="abort", switches="LINE EPOCHS=2 ABORTS=1", states=23_160, about="an epoch after an aborted one"
    ),
    Configuration(
        name="commit",
        switches="LINE FAILOVERS=1 AGAIN=1",
        states=346_810,
        about="change of leader at any step of a commit, reports repeated with other bytes",
    ),
    Configuration(name="join", switches="JOIN ALLSTART", states=325_385, about="a participant joins, orders to all"),
    Configuration(name="join-one", switches="JOIN EPOCHS=2", states=99_128, about="a participant joins, one initiator"),
    Configuration(
        name="rollback", switches="LINE FAULTS=1", states=222_067, about="a crash or false suspicion, at any moment"
    ),
    Configuration(
        name="pair",
        switches="N=2 EPOCHS=2 ABORTS=1 FAULTS=1 FAILOVERS=1",
        states=1_178_508,
        about="abort, crash and change of leader in one run",
    ),
    Configuration(
        name="abort-mesh", switches="EPOCHS=2 ABORTS=1", states=1_092_319, about="everybody to everybody", quick=False
    ),
    Configuration(
        name="crash", switches="FAULTS=1", states=2_850_195, about="rollback, everybody to everybody", quick=False
    ),
    Configuration(
        name="leaders", switches="LINE EPOCHS=2 ABORTS=1 FAILOVERS=1", states=1_278_188, about="two epochs", quick=False
    ),
    Configuration(
        name="crash-line",
        switches="LINE EPOCHS=2 ABORTS=1 FAULTS=1",
        states=3_933_531,
        about="rollback to an earlier epoch",
        quick=False,
    ),
    Configuration(
        name="failover",
        switches="LINE FAULTS=1 FAILOVERS=1",
        states=6_504_263,
        about="change of leader during a rollback",
        quick=False,
    ),
)

MUTANTS = (
    Mutant(name="M_LATEMARK", switches="", invariant="I2", about="a send overtakes the marker"),
    Mutant(name="M_NOFIFO", switches="", invariant="I1", about="a message overtakes another item"),
    Mutant(name="M_EARLY", switches="", invariant="I5", about="reported before the last channel is closed"),
    Mutant(
        name="M_STALEMARK",
        switches="EPOCHS=2 ABORTS=1",
        invariant="I1",
        about="a marker of an aborted epoch closes a channel",
    ),
    Mutant(name="M_NOFENCE", switches="LINE FAULTS=1", invariant="I5", about="an older incarnation's items are taken"),
    Mutant(
        name="M_NOPARK", switches="LINE FAULTS=1", invariant="I5", about="a newer incarnation's items are taken (I25)"
    ),
    Mutant(
        name="M_FENCELATE",
        switches="LINE FAULTS=1",
        invariant="I23",
        about="restore orders leave before the fence is up",
    ),
    Mutant(
        name="M_ANYREPORT", switches="EPOCHS=2 ABORTS=1", invariant="I7", about="the epoch of a report is not looked at"
    ),
    Mutant(
        name="M_REUSE", switches="ABORTS=1", invariant="L1", about="the number of an aborted epoch is used again (I10)"
    ),
    Mutant(
        name="M_NOINJECT", switches="LINE FAULTS=1", invariant="I5", about="recorded channel states are not handed over"
    ),
    Mutant(
        name="M_NOSESSION",
        switches="N=2 EPOCHS=0 FAULTS=2 FAILOVERS=1",
        invariant="I24",
        about="orders do not name the session that they are for",
    ),
    Mutant(
        name="M_NOREACK",
        switches="LINE FAULTS=1 FAILOVERS=1",
        invariant="L1",
        about="a repeated restore order is not acknowledged again (I27)",
    ),
    Mutant(
        name="M_NOREREPORT", switches="LINE FAILOVERS=1", invariant="L1", about="a repeated start order is not answered"
    ),
    Mutant(
        name="M_TWOSEALS",
        switches="LINE FAILOVERS=1 AGAIN=1",
        invariant="I9",
        about="reports count after the seal, and a new leader assembles and seals anew",
    ),
    Mutant(
        name="M_OWNTERM",
        switches="LINE FAILOVERS=1",
        invariant="I9",
        about="a manifest's bytes depend on who makes them",
    ),
    Mutant(name="M_ABORTSEALED", switches="LINE ABORTS=1", invariant="I11", about="a sealed epoch is aborted"),
    Mutant(name="M_PUTFIRST", switches="LINE ABORTS=1", invariant="I11", about="the manifest is there before the seal"),
    Mutant(name="M_ONESTART", switches="CHAIN", invariant="L1", about="the initiator does not reach everybody"),
    Mutant(name="M_JOINOPEN", switches="JOIN ALLSTART", invariant="I2", about="the topology changes in an open epoch"),
    Mutant(
        name="M_NOACCEPT",
        switches="JOIN ALLSTART",
        invariant="L1",
        about="an epoch starts before all accepted the topology",
    ),
)

PROBES = (
    Probe(name="MARKER_BEFORE_ORDER", switches="ALLSTART"),
    Probe(name="TOKEN_RECORDED", switches=""),
    Probe(name="RESTORED_IN_FLIGHT", switches="LINE FAULTS=1"),
    Probe(name="ZOMBIE_DROPPED", switches="LINE FAULTS=1"),
    Probe(name="FUTURE_WAITS", switches="LINE FAULTS=1"),
    Probe(name="DEPOSED_PUTS_LATE", switches="LINE FAILOVERS=1"),
    Probe(name="DEPOSED_PUTS_FIRST", switches="LINE FAILOVERS=1"),
    Probe(name="FAULT_WHILE_SEALED", switches="LINE FAULTS=1"),
    Probe(name="REPORTED_TWICE", switches="LINE FAILOVERS=1 AGAIN=1"),
    Probe(name="JOINER_IN_CUT", switches="JOIN"),
    Probe(name="EVERYTHING", switches="LINE FAULTS=1 FAILOVERS=1"),
)
