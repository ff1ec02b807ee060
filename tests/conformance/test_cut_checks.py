"""Reports that an assembler must accept or refuse, given to the checker as plain facts and as documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.channel import ReceivingEnd, SendingEnd
from protocol.cut import check_cut, check_recorded
from protocol.ids import ParticipantId
from protocol.items import encode_message_item
from protocol.manifest import IncomingCut, LocalSnapshot, OutgoingCut
from tests.shared import shared_path
from tests.snapshot_world import channel, make_topology

CASES = json.loads(shared_path("vectors/cut-checks/cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plain_facts_give_exactly_the_reasons_of_the_case(case: dict[str, Any]) -> None:
    kinds = set()
    for source, target in case["channels"]:
        name = f"{source}->{target}"
        sender, receiver = case["reports"].get(source), case["reports"].get(target)
        recorded = receiver["recorded"][name] if receiver else None
        found = check_recorded(
            None if recorded is None else [number for number, _id, _amount in recorded],
            receiver["received"][name] if receiver else None,
            sender["sent"][name] if sender else None,
            channel=channel(source, target),
        )
        kinds |= {violation.kind for violation in found}
    assert kinds == set(case["reasons"])
    assert (not kinds) == (case["verdict"] == "consistent")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_documents_with_the_same_facts_get_the_same_verdict(case: dict[str, Any]) -> None:
    """The facts are turned into the documents that participants report, digests over stand-in bytes included.

    A document carries counts and a digest, not a list of numbers: so a wrong order, for one, shows as a digest.
    """
    topology = make_topology(case["processes"], [channel(*pair) for pair in case["channels"]])
    snapshots = {ParticipantId(name): document(case, name) for name in case["processes"] if name in case["reports"]}
    violation = check_cut(topology, snapshots)
    if case["verdict"] == "consistent":
        assert violation is None
    else:
        assert violation is not None
        as_documents_show_it = {"order": "digest", "counted-twice": "duplicate"}
        assert violation.kind in {as_documents_show_it.get(reason, reason) for reason in case["reasons"]}


def digest_of(numbers: list[int], c: str) -> str:
    """Digest of a stream that holds these items in this order."""
    end = SendingEnd(channel("a", "b"))
    end.put([encode_message_item(f"{c} {number}".encode()) for number in numbers])
    return end.digest()


def document(case: dict[str, Any], name: str) -> LocalSnapshot:
    report = case["reports"][name]
    outgoing = tuple(
        OutgoingCut(target=target, sent=sent, digest=digest_of(list(range(1, sent + 1)), f"{name}->{target}"))
        for target, sent in sorted((text.partition("->")[2], sent) for text, sent in report["sent"].items())
    )
    incoming = []
    for text, recorded in sorted(report["recorded"].items()):
        if recorded is None:
            continue
        received = report["received"][text]
        numbers = [number for number, _id, _amount in recorded]
        incoming.append(
            IncomingCut(
                source=text.partition("->")[0],
                received=received,
                closed_at=max([received, *numbers]),
                digest=digest_of([*range(1, received + 1), *numbers], text),
                items=len(numbers),
                messages=len(numbers),
            )
        )
    member = make_topology(case["processes"], []).member(ParticipantId(name))
    assert member is not None
    return LocalSnapshot(
        cluster="test",
        participant=name,
        incarnation=1,
        session=member.session,
        epoch=1,
        topology=1,
        agents=(),
        outgoing=outgoing,
        incoming=tuple(incoming),
    )


def test_three_inconsistent_cases_add_up_and_are_refused_all_the_same() -> None:
    sums_right = [case for case in CASES if case["total_matches"] and case["verdict"] == "inconsistent"]
    assert len(sums_right) == 3
    test = test_documents_with_the_same_facts_get_the_same_verdict
    for case in sums_right:
        test(case)


def test_a_receiving_end_reports_the_digest_that_the_documents_use() -> None:
    """Ties the stand-in digests above to what the channel machine computes."""
    items = [encode_message_item(f"a->b {number}".encode()) for number in (1, 2, 3)]
    end = ReceivingEnd(channel("a", "b"))
    for _first, run in end.accept(1, items):
        end.advance(run)
    assert end.digest() == digest_of([1, 2, 3], "a->b")
