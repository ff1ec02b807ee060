"""Threads of a participant's store: work runs beside the loop, and one that hangs keeps nobody."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from participant.runtime.threads import DaemonThreads

ROOT = Path(__file__).parents[2]
HANGS = """
import asyncio, sys, threading
from participant import Agent, Participant
from participant.runtime import parts as module
from protocol.errors import StoreError
from protocol.storage import MemoryStore

module.STORE_SECONDS_MAX = 0.2

class Idle(Agent, kind="idle"):
    pass

class Hanging(MemoryStore):
    def get(self, key, *, size_max):
        threading.Event().wait()
    put = get

async def main():
    settings = {"id": "p1", "cluster": "shop", "transport": "memory", "secret": bytes(range(32))}
    async with Participant(Idle("a"), store=Hanging("shop"), coordinators=["127.0.0.1:1"], **settings):
        pass

try:
    asyncio.run(main())
except StoreError as error:
    sys.exit(str(error))
"""


def test_work_runs_in_several_threads_and_its_outcome_is_told():
    threads = DaemonThreads(2, "test")
    both = threading.Barrier(2)
    together = [threads.submit(both.wait, 10) for _ in range(2)]
    assert sorted(each.result(10) for each in together) == [0, 1]
    failed = threads.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(10)
    assert threads.submit(lambda: threading.current_thread().daemon).result(10)


def test_work_that_hangs_leaves_the_other_threads_and_waiting_work_can_be_taken_back():
    threads = DaemonThreads(2, "test")
    go_on = threading.Event()
    hung = threads.submit(go_on.wait)
    assert threads.submit(len, "abc").result(10) == 3
    also = threads.submit(go_on.wait)
    waiting = threads.submit(len, "abc")
    assert waiting.cancel()
    go_on.set()
    assert hung.result(10)
    assert also.result(10)
    with pytest.raises(CancelledError):
        waiting.result(10)


@pytest.mark.slow
def test_a_process_whose_store_hangs_says_so_and_ends():
    """With the library's own pool the loop would wait for the thread, and the process would stay."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "did not answer within" in ended.stderr
