"""Who gets in: strangers, wrong certificates, wrong claims, wrong frames; and what a start refuses."""

import asyncio
import os
import pickle
import socket
import ssl
import struct
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec
import pytest

import coordinator.ledger
from coordinator.certificates import make_certificates
from coordinator.runtime.raft import CorruptJournal, CorruptSnapshot, RaftConfig, RaftGroup
from coordinator.runtime.raft.messages import LENGTH, Hello, encode_frame
from coordinator.runtime.service import understood
from protocol.errors import ConfigError, LimitExceeded, Refused, StoreError, Unreachable, UnsupportedVersion
from protocol.limits import COMMAND_BYTES_MAX, RAFT_UNKNOWN_CONNECTIONS_MAX
from tests.integration.raft_process import Ledger, eventually, group_configs, tls_files

pytestmark = pytest.mark.slow


class Running:
    """A `RaftGroup` of one coordinator with a ledger, and what it told its service."""

    def __init__(self, config: RaftConfig) -> None:
        self.ledger = Ledger()
        self.told: list[tuple[str, ...]] = []
        self.fatal: list[BaseException] = []
        self.group = RaftGroup(
            config,
            self.ledger.apply,
            self.ledger.snapshot,
            self.ledger.restore,
            lambda command, result: self.told.append((command, result)),
            on_restored=lambda state: self.told.append((state,)),
            on_fatal=self.fatal.append,
        )

    async def __aenter__(self) -> Self:
        await self.group.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.group.stop()

    async def wait_leading(self) -> None:
        async def leads() -> bool:
            return self.group.is_leader

        await eventually(leads)

    async def wait_refused(self, reason: str) -> None:
        """Until a connection was refused for that reason."""

        async def refused() -> bool:
            return reason in "; ".join(self.group.status()["refused_connections"]).lower()

        reason = reason.lower()
        await eventually(refused, timeout=5)


@pytest.fixture
async def alone(tmp_path):
    """c2 of a group of three whose others are not there: it accepts c3 and dials c1."""
    configs = group_configs(tmp_path)
    async with Running(configs["c2"]) as running:
        yield running


def client_context(folder: Path, name: str | None, authority: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority or folder / "ca.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


class Intruder:
    """A connection to a coordinator's Raft port."""

    def __init__(self, running: Running, context: ssl.SSLContext | None) -> None:
        assert running.group.address is not None
        self._host, port = running.group.address.split(":")
        self._port = int(port)
        self._context = context

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def hello(self, source: str = "c3", target: str = "c2", cluster: str = "demo", version: int = 1) -> None:
        self.send(encode_frame(Hello(version=version, cluster=cluster, source=source, target=target)))

    async def answered(self) -> bytes:
        """A whole frame."""
        async with asyncio.timeout(5):
            length = LENGTH.unpack(await self._reader.readexactly(4))[0]
            return await self._reader.readexactly(length)

    async def dropped(self) -> bool:
        """True once the coordinator has closed the connection; whatever it sent before is ignored."""
        async with asyncio.timeout(5):
            try:
                while await self._reader.read(1 << 16):
                    pass
            except (ConnectionError, ssl.SSLError):
                pass
            return True


def tls_folder(running: Running) -> Path:
    assert running.group.config.tls is not None
    return running.group.config.tls.ca.parent


def listening_addresses() -> set[str]:
    """Local addresses, in the kernel's notation, that this process listens on."""
    mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1])
    return found


def _is_link(fd: str) -> bool:
    return Path(f"/proc/self/fd/{fd}").is_symlink()


async def test_it_listens_on_exactly_the_configured_address(alone):
    """The stock library binds to 0.0.0.0 even for a loopback address."""
    port = int(alone.group.address.split(":")[1])
    assert {each for each in listening_addresses() if each.endswith(f":{port:04X}")} == {f"0100007F:{port:04X}"}


async def test_a_group_of_one_opens_no_port_at_all(tmp_path):
    before = listening_addresses()
    async with Running(group_configs(tmp_path, size=1)["c1"]) as running:
        await running.wait_leading()
        assert running.group.address is None
        assert listening_addresses() == before


async def test_a_strangers_payload_is_not_executed(alone, tmp_path):
    """One frame from a stranger ran code in the stock library, without TLS and without password."""
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    body = pickle.dumps(Payload(), 2)
    for prefix in (struct.pack("<i", len(body)), struct.pack(">I", len(body))):
        async with Intruder(alone, None) as stranger:
            stranger.send(prefix + body)
            assert await stranger.dropped()
    assert not mark.exists()


async def test_a_member_cannot_bring_a_payload_into_the_log(alone, tmp_path):
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    command = b"\0" + pickle.dumps((0, (Payload(),)), 2)
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.hello()
        await member.answered()
        member.send(encode_frame({"type": "apply_command", "command": command, "request_id": 1}))
        assert await member.dropped()
    assert not mark.exists()


async def test_a_client_without_certificate_is_refused(alone):
    async with Intruder(alone, client_context(tls_folder(alone), None)) as stranger:
        stranger.hello()
        assert await stranger.dropped()
    await alone.wait_refused("certificate")


async def test_a_certificate_of_another_authority_is_refused(alone, tmp_path):
    make_certificates(tmp_path / "other", {"c3": ["127.0.0.1"]})
    context = client_context(tmp_path / "other", "c3", authority=tls_folder(alone) / "ca.pem")
    async with Intruder(alone, context) as stranger:
        stranger.hello()
        assert await stranger.dropped()
    await alone.wait_refused("certificate")


async def test_a_certificate_of_the_cluster_for_somebody_outside_the_group_is_refused(alone):
    """No phantom member: who is in the group is configuration, not a message."""
    make_certificates(tls_folder(alone), {"c9": ["127.0.0.1"]})
    async with Intruder(alone, client_context(tls_folder(alone), "c9")) as stranger:
        stranger.hello(source="c9")
        assert await stranger.dropped()
    await alone.wait_refused("not in this group")


@pytest.mark.parametrize(
    ("claim", "refusal"),
    [
        ({"source": "c1"}, "claims to be 'c1'"),
        ({"target": "c1"}, "to want 'c1'"),
        ({"cluster": "other"}, "belongs to cluster 'other'"),
        ({"version": 2}, "version 2"),
    ],
)
async def test_a_claim_that_the_certificate_does_not_bear_out_is_refused(alone, claim, refusal):
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.hello(**claim)
        assert await member.dropped()
    await alone.wait_refused(refusal)


async def test_a_server_that_shows_another_members_certificate_is_not_believed(tmp_path):
    """c2 dials c1's address and finds c3 there."""
    configs = group_configs(tmp_path)
    swapped = {**configs["c2"].peers, "c1": configs["c3"].listen}
    async with Running(configs["c3"]), Running(replace(configs["c2"], peers=swapped)) as mistaken:
        await mistaken.wait_refused("shows the certificate of 'c3'")


async def test_a_peer_that_dropped_packets_for_a_while_is_dialled_again_at_once(tmp_path):
    """The system's own attempts pause for 1, 2, 4, 8 ... 64 s: a healed coordinator was out for as long as it had been cut off."""
    configs = group_configs(tmp_path)
    loop = asyncio.get_running_loop()
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        listener.setblocking(False)
        filler.connect((host, port))  # the queue is full: further ones get no answer at all
        config = replace(
            configs["c2"],
            peers={**configs["c2"].peers, "c1": f"{host}:{port}"},
            timing=replace(configs["c2"].timing, handshake=0.3),
        )
        async with Running(config):
            await asyncio.sleep(8)  # longer than the system's short pauses: its next attempt is 3 s away
            (await loop.sock_accept(listener))[0].close()
            again, _ = await asyncio.wait_for(loop.sock_accept(listener), 2)
            again.close()


async def test_an_announced_huge_frame_is_refused_before_it_is_buffered(alone):
    """The stock library buffered 60 MB of an announced 2^31-1."""
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.hello()
        await member.answered()
        member.send(struct.pack(">I", 2**31 - 1))
        assert await member.dropped()


async def test_a_stranger_may_send_a_hello_and_nothing_larger(alone):
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.send(struct.pack(">I", 2000))
        assert await member.dropped()
    await alone.wait_refused("at most 1024")


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"type": "add", "node": "x:1"})])
async def test_anything_but_a_hello_first_is_refused(alone, body):
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.send(struct.pack(">I", len(body)) + body)
        assert await member.dropped()


async def test_an_admin_request_of_the_library_is_refused_from_a_member_too(alone):
    async with Intruder(alone, client_context(tls_folder(alone), "c3")) as member:
        member.hello()
        await member.answered()
        member.send(encode_frame({"type": "add", "node": "127.0.0.1:39699"}))
        assert await member.dropped()
    assert alone.group.config.members == ("c1", "c2", "c3")


async def test_strangers_that_say_nothing_are_bounded_in_number_and_in_time(tmp_path):
    config = group_configs(tmp_path)["c2"]
    async with Running(replace(config, timing=replace(config.timing, handshake=0.4))) as running:
        strangers = [Intruder(running, None) for _ in range(RAFT_UNKNOWN_CONNECTIONS_MAX + 3)]
        for stranger in strangers:
            await stranger.__aenter__()
        assert all(await asyncio.gather(*(stranger.dropped() for stranger in strangers)))
        for stranger in strangers:
            await stranger.__aexit__()
        await running.wait_refused("too many unknown connections")


async def test_a_newer_connection_of_a_peer_replaces_the_older(alone):
    context = client_context(tls_folder(alone), "c3")
    async with Intruder(alone, context) as first:
        first.hello()
        await first.answered()
        async with Intruder(alone, context) as second:
            second.hello()
            await second.answered()
            assert await first.dropped()
            assert alone.group.status()["peers"]["c3"]["connected"]


async def test_only_tls_1_3_is_spoken(alone):
    context = client_context(tls_folder(alone), "c3")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with Intruder(alone, context):
            pass


# What a start refuses.


async def test_a_port_in_use_is_named(alone, tmp_path):
    taken = replace(alone.group.config, folder=tmp_path / "second")
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        await Running(taken).group.start()


async def test_a_folder_in_use_names_the_process(tmp_path):
    config = group_configs(tmp_path, size=1)["c1"]
    async with Running(config):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            await Running(config).group.start()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    config = group_configs(tmp_path, size=1)["c1"]
    with pytest.raises(ConfigError, match="cannot be used"):
        await Running(replace(config, folder=tmp_path / "file" / "data")).group.start()


async def test_certificates_that_do_not_fit_are_refused_at_the_start(tmp_path):
    configs = group_configs(tmp_path)
    folder = tmp_path / "tls"
    with pytest.raises(ConfigError, match="certificate of 'c3', this coordinator is c2"):
        await Running(replace(configs["c2"], tls=tls_files(folder, "c3"))).group.start()
    mixed = replace(tls_files(folder, "c2"), key=folder / "c1.key")
    with pytest.raises(ConfigError, match="do not fit together"):
        await Running(replace(configs["c2"], tls=mixed)).group.start()
    (folder / "c2.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        await Running(configs["c2"]).group.start()
    (folder / "c2.pem").unlink()
    with pytest.raises(ConfigError, match=r"tls\.cert"):
        await Running(configs["c2"]).group.start()


async def test_a_rotten_journal_is_refused_and_starts_again_once_it_is_put_back(tmp_path):
    config = group_configs(tmp_path, size=1)["c1"]
    async with Running(config) as running:
        await running.wait_leading()
        await running.group.submit("one")
    journal = config.folder / "journal"
    good = journal.read_bytes()
    journal.write_bytes(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    with pytest.raises(CorruptJournal, match=str(journal)):
        await Running(config).group.start()
    journal.write_bytes(good)
    async with Running(config) as running:
        await running.wait_leading()
        assert running.ledger.sequence == ["one"]


async def test_a_rotten_or_missing_snapshot_is_refused(tmp_path):
    config = group_configs(tmp_path, size=1)["c1"]
    async with Running(config) as running:
        await running.wait_leading()
        await running.group.submit("one")
        running.group.compact()
        await eventually(lambda: has_snapshot(running))
        await running.group.submit("two")
    snapshot = config.folder / "snapshot"
    good = snapshot.read_bytes()
    snapshot.write_bytes(good.replace(b"one", b"0ne"))
    with pytest.raises(CorruptSnapshot, match="checksum"):
        await Running(config).group.start()
    snapshot.unlink()
    with pytest.raises(CorruptSnapshot, match="missing"):
        await Running(config).group.start()
    snapshot.write_bytes(good)
    async with Running(config) as running:
        await running.wait_leading()
        assert running.told == [('["one"]',), ("two", "1")]


async def has_snapshot(running: Running) -> bool:
    return running.group.status()["snapshot_at"] > 0


async def test_another_coordinators_folder_is_refused(tmp_path):
    config = group_configs(tmp_path, size=1)["c1"]
    async with Running(config) as running:
        await running.wait_leading()
    with pytest.raises(StoreError, match="belongs to coordinator c1"):
        await Running(replace(config, id="c2")).group.start()


# What the service sees.


async def test_results_and_applied_commands_arrive_in_order(tmp_path):
    async with Running(group_configs(tmp_path, size=1)["c1"]) as running:
        leaderships: list[tuple[bool, int]] = []
        running.group.on_leadership(lambda leads, term: leaderships.append((leads, term)))
        await running.wait_leading()
        results = await asyncio.gather(*(running.group.submit(f"id{number}") for number in range(50)))
        assert results == [str(number) for number in range(50)]
        assert running.told == [(f"id{number}", str(number)) for number in range(50)]
        assert await running.group.submit("id7") == "7"
        assert await running.group.read(lambda: len(running.ledger.sequence)) == 50
        await running.group.barrier()
        assert leaderships == [(True, 1)]
        assert running.group.is_ready


async def test_a_command_that_raises_has_no_effect_and_the_group_goes_on(tmp_path):
    """In the stock library one raising command stops the whole group, again after each restart."""
    config = group_configs(tmp_path, size=1)["c1"]
    async with Running(config) as running:
        await running.wait_leading()
        assert "apply-failed" in await running.group.submit("raise")
        assert await running.group.submit("after") == "0"
    async with Running(config) as running:
        await running.wait_leading()
        assert running.ledger.sequence == ["after"]


async def test_an_entry_of_a_newer_build_stops_an_older_one_before_it_and_is_applied_after_the_upgrade(tmp_path):
    """Passing over it would make this replica differ from those that understand it, without a word."""
    config = group_configs(tmp_path, size=1)["c1"]
    newer = '{"at":0,"done":0,"id":["c1.x",1],"kind":"split","term":1,"v":2}'
    fatal = asyncio.get_running_loop().create_future()
    for starts in range(2):
        ledger = coordinator.ledger.Ledger("shop")
        group = RaftGroup(
            config,
            lambda command, ledger=ledger: understood(ledger.apply(command)),
            ledger.dump,
            ledger.load,
            lambda *_: None,
            on_fatal=fatal.set_result,
        )
        await group.start()
        if starts == 0:
            await group.wait_leader()
            with pytest.raises((Unreachable, Refused)):
                await group.submit(newer, 5)
        assert isinstance(await asyncio.wait_for(fatal, 5), UnsupportedVersion)
        await group.stop()
        fatal = asyncio.get_running_loop().create_future()
    async with Running(config) as upgraded:
        await upgraded.wait_leading()
        assert upgraded.ledger.sequence == [newer]


async def test_oversized_and_foreign_text_is_refused_before_it_is_submitted(tmp_path):
    async with Running(group_configs(tmp_path, size=1)["c1"]) as running:
        with pytest.raises(LimitExceeded):
            await running.group.submit("x" * (COMMAND_BYTES_MAX + 1))
        with pytest.raises(ValueError, match="ASCII"):
            await running.group.submit("ü")


async def test_without_a_leader_a_command_is_certainly_not_applied(alone):
    with pytest.raises(Refused) as caught:
        await alone.group.submit("nobody")
    assert caught.value.code == "no-leader"
    assert not alone.group.is_leader


async def test_a_journal_that_cannot_be_written_ends_the_group(tmp_path, monkeypatch):
    """I18: nothing is acknowledged after a failed sync, and the service is told to exit."""
    async with Running(group_configs(tmp_path, size=1)["c1"]) as running:
        await running.wait_leading()

        def broken(_self: object, _name: str) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("coordinator.runtime.raft.files.RealFiles.sync", broken)
        with pytest.raises(Unreachable):
            await running.group.submit("lost")
        monkeypatch.undo()
        assert [type(error).__name__ for error in running.fatal] == ["JournalPoisoned"]
        with pytest.raises(Refused, match="not running"):
            await running.group.submit("more")
        assert not running.group.is_ready
        assert not running.group.is_leader


async def test_stopping_answers_everything_and_can_be_done_twice(tmp_path):
    running = Running(group_configs(tmp_path)["c2"])
    await running.group.start()
    waiting = asyncio.create_task(running.group.wait_leader(timeout=30))
    await asyncio.sleep(0)
    await running.group.stop()
    await running.group.stop()
    with pytest.raises(Refused):
        await waiting
    with pytest.raises(Refused):
        await running.group.barrier()
