"""The real folder: in which order things become durable."""

import os

import pytest

from coordinator.runtime.raft.files import RealFiles


@pytest.fixture
def calls(monkeypatch):
    """What the system is asked for, in order, by file name."""
    seen: list[tuple[str, str]] = []

    def name(handle: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))

    def recording(call: str):
        real = getattr(os, call)

        def record(handle, *arguments):
            seen.append((call, name(handle)))
            return real(handle, *arguments)

        monkeypatch.setattr(os, call, record)

    for call in ("write", "fdatasync", "fsync"):
        recording(call)
    real_rename = os.rename

    def rename(source, target):
        seen.append(("rename", os.path.basename(target)))
        real_rename(source, target)

    monkeypatch.setattr(os, "rename", rename)
    return seen


def test_a_replaced_file_is_whole_before_it_has_its_name_and_the_name_is_durable(tmp_path, calls):
    """The folder is synced before as well: what was named earlier (a snapshot) never comes later than this (the trimmed journal)."""
    folder = tmp_path.name
    RealFiles(tmp_path).replace("journal", b"content")
    assert calls == [
        ("write", "journal.new"),
        ("fdatasync", "journal.new"),
        ("fsync", folder),
        ("rename", "journal"),
        ("fsync", folder),
    ]
    assert (tmp_path / "journal").read_bytes() == b"content"


def test_appending_goes_on_in_the_new_file_after_a_replacement(tmp_path):
    files = RealFiles(tmp_path)
    files.append("journal", b"old")
    files.replace("journal", b"new ")
    files.append("journal", b"more")
    assert files.read("journal") == b"new more"
    files.close()


def test_a_left_over_half_of_a_replacement_is_not_appended_to(tmp_path):
    (tmp_path / "journal.new").write_bytes(b"half of an earlier attempt")
    RealFiles(tmp_path).replace("journal", b"whole")
    assert (tmp_path / "journal").read_bytes() == b"whole"


def test_truncation_is_durable_at_once(tmp_path, calls):
    files = RealFiles(tmp_path)
    files.append("journal", b"0123456789")
    calls.clear()
    files.truncate("journal", 4)
    assert calls == [("fsync", "journal")]
    files.append("journal", b"x")
    assert files.read("journal") == b"0123x"
    files.close()


def test_a_write_that_the_system_takes_in_parts_is_completed(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:3])))
    files = RealFiles(tmp_path)
    files.append("journal", b"0123456789")
    assert files.read("journal") == b"0123456789"
    files.close()


def test_files_are_readable_for_the_owner_only(tmp_path):
    files = RealFiles(tmp_path)
    files.replace("journal", b"x")
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    files.close()
