"""`cleancut simulate explain`: the picture shows what the run did, says what it leaves out, and holds whatever names there are."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from protocol.digests import manifest_key
from protocol.documents import decode_manifest
from protocol.ids import Epoch
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.reading import EpochReader
from simulations.command import simulate
from simulations.diagram import COORDINATORS, Arrow, Mark, Scene, Span, draw
from simulations.options import Fault, Options, Run, decode_run, encode_run
from simulations.recorder import Recorder
from simulations.run import run
from simulations.scene import ARROWS_MAX, NothingToShow, scene_of
from simulations.world import MS, SECOND

PICTURE = Path(__file__).parents[2] / "simulations" / "cut.json"
SVG = "{http://www.w3.org/2000/svg}"

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


def small_run(*, faults=(), **changes):
    """Three busy participants for a second or two: every cut has messages in flight."""
    options = Options(
        seed=11,
        nodes=3,
        latency_ns=6 * MS,
        jitter_ns=10 * MS,
        tick_ns=30 * MS,
        interval_ns=300 * MS,
        store_ns=MS,
        faults_ns=2 * SECOND,
    )
    for name, value in changes.items():
        setattr(options, name, value)
    return Run(options=options, faults=list(faults))


def recorded(what):
    recorder = Recorder()
    return recorder, run(what, recorder=recorder)


def saved(folder, what):
    file = folder / "run.json"
    file.write_bytes(encode_run(what))
    return file


def titles(picture, role):
    """Tooltips of all arrows of a role."""
    return [
        path.findtext(f"{SVG}title", "")
        for path in ElementTree.fromstring(picture).iter(f"{SVG}path")
        if path.get("class", "").split(" ")[0] == role
        and path.get("marker-end")
        and path.find(f"{SVG}title") is not None
    ]


def ids(picture, role):
    return sorted(title.split("message ")[1].split(",")[0] for title in titles(picture, role))


def manifests(recorder):
    """Epoch -> its manifest, as the coordinators stored it."""
    store = recorder.cluster.store.objects
    for number, seen in recorder.epochs.items():
        if seen.state == "committed":
            key = manifest_key(Epoch(number))
            yield number, EpochReader(store, decode_manifest(store.get(key, size_max=MANIFEST_BYTES_MAX), name=key))


def test_exactly_the_messages_that_the_manifest_holds_as_in_flight_are_emphasised():
    """What the picture says comes from the ghost log, what it is compared with from the product's store."""
    recorder, outcome = recorded(small_run())
    assert outcome.ok, outcome.text
    total = 0
    for number, reader in manifests(recorder):
        expected = sorted(
            envelope.id.hex()
            for channel in reader.manifest.channels
            for envelope in reader.channel(channel.source, channel.target)
        )
        picture = draw(scene_of(recorder, outcome, epoch=number))
        assert ids(picture, "flight") == expected
        assert titles(picture, "orphan") == []
        total += len(expected)
    assert total >= 10


def test_each_channel_has_its_marker_and_each_member_its_dot():
    recorder, outcome = recorded(small_run())
    number, reader = list(manifests(recorder))[2]
    picture = draw(scene_of(recorder, outcome, epoch=number))
    markers = titles(picture, "marker")
    assert sorted(title.split(" on ")[1].split("\n")[0] for title in markers) == sorted(
        f"{channel.source} → {channel.target}" for channel in reader.manifest.channels
    )
    assert all(", arrived " in title for title in markers)
    dots = [each for each in ElementTree.fromstring(picture).iter(f"{SVG}g") if each.find(f"{SVG}circle") is not None]
    cuts = [each.findtext(f"{SVG}title", "") for each in dots if each.find(f"{SVG}circle[@class='cut']") is not None]
    assert [cut.split(" records")[0] for cut in cuts if " records" in cut] != []
    assert {cut.split(" records")[0] for cut in cuts if " records" in cut} == {"p1", "p2", "p3"}


def test_a_recorder_changes_nothing_of_the_run():
    what = small_run(faults=[Fault(kind="crash", at_ns=900 * MS, for_ns=100 * MS, who="p2")])
    _, outcome = recorded(what)
    assert outcome.digest == run(what).digest


def test_a_message_is_put_before_it_is_delivered_and_a_marker_before_it_is_taken():
    recorder, _ = recorded(small_run(broker=True))
    assert recorder.times
    for times in recorder.times.values():
        assert len(times.delivered) <= len(times.put)
        assert all(put <= delivered for put, delivered in zip(times.put, times.delivered, strict=False))
    assert all(marker.arrived is not None and marker.put < marker.arrived for marker in recorder.markers.values())


def test_the_same_run_is_the_same_picture_to_the_byte(tmp_path):
    file = saved(tmp_path, small_run(faults=[Fault(kind="pause", at_ns=900 * MS, for_ns=200 * MS, who="p2")]))
    pictures = []
    for name in ("one.svg", "two.svg"):
        result = CliRunner().invoke(simulate, ["explain", str(file), "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    ElementTree.fromstring(pictures[0])


def test_crash_pause_and_partition_are_in_the_picture_and_in_its_legend():
    faults = [
        Fault(kind="pause", at_ns=1000 * MS, for_ns=50 * MS, who="p3"),
        Fault(kind="partition", at_ns=1020 * MS, for_ns=60 * MS, who="p1"),
        Fault(kind="crash", at_ns=1100 * MS, for_ns=50 * MS, who="p2"),
        Fault(kind="crash-leader", at_ns=1150 * MS, for_ns=50 * MS),
    ]
    recorder, outcome = recorded(small_run(faults=faults))
    picture = draw(scene_of(recorder, outcome, begin=900 * MS, end=1300 * MS))
    words = {each.text for each in ElementTree.fromstring(picture).iter(f"{SVG}text")}
    assert {"crash", "paused", "cut off from others", "not running", "partition p1"} <= words
    assert any(word.endswith("crashed") for word in words if word)
    found = [
        title
        for rectangle in ElementTree.fromstring(picture).iter(f"{SVG}rect")
        if rectangle.get("class") in {"pause", "partition"} and (title := rectangle.findtext(f"{SVG}title"))
    ]
    assert [title.split("\n")[0] for title in found] == ["partition p1", "pause p3"]


def test_a_violation_shows_its_epoch_and_what_broke(tmp_path):
    """A planted bug: what is in flight is not recorded."""
    recorder, outcome = recorded(small_run(mutant="late-marker"))
    assert outcome.kind == "safety"
    assert "epoch" in outcome.text
    scene = scene_of(recorder, outcome)
    assert f"epoch {outcome.text.split('epoch ')[1].split()[0].strip(',')}" in scene.title
    assert outcome.text[:60] in scene.caption[0]
    ElementTree.fromstring(draw(scene))


def test_arrows_beyond_the_limit_are_left_out_and_counted_but_none_that_is_in_flight():
    recorder, outcome = recorded(small_run(burst=8))
    number, _ = list(manifests(recorder))[3]
    near = scene_of(recorder, outcome, epoch=number)
    scene = scene_of(recorder, outcome, epoch=number, begin=500 * MS, end=3 * SECOND)
    assert len(scene.arrows) == ARROWS_MAX
    assert "are left out" in scene.notes[0]
    assert "are left out" in draw(scene)
    flights = [arrow.title for arrow in near.arrows if arrow.role == "flight"]
    assert flights
    assert [arrow.title for arrow in scene.arrows if arrow.role == "flight"] == flights


HOSTILE = ["</text><script>alert(1)</script>", '"&quot;\' onload="x', "a]]>b\x00\x1b\ud800", "p" * 300]


def test_hostile_names_are_text_and_nothing_else():
    scene = Scene(
        title=HOSTILE[0],
        caption=[*HOSTILE],
        begin=0,
        end=100 * MS,
        participants=HOSTILE,
        arrows=[
            Arrow(source=one, target=other, put=MS, arrived=arrived, role=role, title=one + other)
            for one, other in pairwise(HOSTILE)
            for role in ("message", "flight", "orphan", "marker", "other")
            for arrived in (50 * MS, None)
        ],
        marks=[
            Mark(who=who, at=10 * MS, kind=kind, title=who, label=who)
            for who in [*HOSTILE, COORDINATORS]
            for kind in ("cut", "othercut", "crash", "tick", "stored", "aborted")
        ],
        spans=[
            Span(who=who, begin=MS, end=20 * MS, kind=kind, title=who, label=who)
            for who in HOSTILE
            for kind in ("alive", "pause", "partition", "fault")
        ],
        notes=[*HOSTILE],
    )
    picture = draw(scene)
    tree = ElementTree.fromstring(picture.encode())
    assert not list(tree.iter(f"{SVG}script"))
    assert not [each for each in tree.iter() if "onload" in each.attrib]
    assert HOSTILE[0] in [each.text for each in tree.iter(f"{SVG}text")]


def test_a_trace_file_is_drawn_as_the_run_that_wrote_it(tmp_path):
    trace = tmp_path / "trace.txt"
    arguments = ["run", "--seed", "3", "--nodes", "2", "--faults", "none", "--seconds", "2"]
    assert CliRunner().invoke(simulate, [*arguments, "--trace", str(trace)]).exit_code == 0
    result = CliRunner().invoke(simulate, ["explain", str(trace)])
    assert result.exit_code == 0, result.output
    assert "another build" not in result.output
    ElementTree.fromstring((tmp_path / "trace.txt.svg").read_bytes())

    lines = trace.read_text().splitlines()
    trace.write_text("\n".join([*lines[:-1], "# digest 00"]) + "\n")
    assert "another build" in CliRunner().invoke(simulate, ["explain", str(trace)]).output


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"{}", b"# run {", b"   1.0 p1 Started life 1\n", b"[1, 2"])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path, content):
    file = tmp_path / "wrong.txt"
    file.write_bytes(content)
    result = CliRunner().invoke(simulate, ["explain", str(file)])
    assert result.exit_code == 2
    assert "wrong.txt is neither a replay file" in result.output
    assert not (tmp_path / "wrong.txt.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epoch", "4711"], "there is no epoch 4711"),
        (["--from", "200", "--to", "100"], "is empty"),
        (["--from", "nan"], "not a time"),
        (["--to", "inf"], "not a time"),
        (["--seed", "1"], "not both"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path, arguments, words):
    file = saved(tmp_path, small_run(faults_ns=SECOND))
    result = CliRunner().invoke(simulate, ["explain", str(file), *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_an_epoch_that_never_was_is_named_with_those_that_were():
    recorder, outcome = recorded(small_run(faults_ns=SECOND))
    with pytest.raises(NothingToShow, match="it has 1 to"):
        scene_of(recorder, outcome, epoch=4711)


def test_the_picture_of_the_readme_still_shows_messages_in_flight():
    what = decode_run(PICTURE.read_bytes())
    assert what.note
    recorder, outcome = recorded(what)
    assert outcome.ok
    assert "flight" in {arrow.role for arrow in scene_of(recorder, outcome).arrows}
    picture = PICTURE.with_suffix(".svg").read_bytes()
    assert len(picture) < 60_000
    ElementTree.fromstring(picture)
