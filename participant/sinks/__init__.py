"""Places outside of the cluster that take each output once: files, tables, HTTP services.

Belongs here: sinks, and what they are made of. They do I/O, like a driver, and know nothing of the driver. The rules of
when an output may leave are in `participant.outbox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_exports

if TYPE_CHECKING:
    from participant.sinks.base import Sink, SinkError, SinkOutput
    from participant.sinks.file import FileSink
    from participant.sinks.http import HttpSink
    from participant.sinks.memory import MemorySink
    from participant.sinks.sql import SqlSink

__all__ = ["FileSink", "HttpSink", "MemorySink", "Sink", "SinkError", "SinkOutput", "SqlSink"]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would let every misspelt name pass
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "base": ("Sink", "SinkError", "SinkOutput"),
            "file": ("FileSink",),
            "http": ("HttpSink",),
            "memory": ("MemorySink",),
            "sql": ("SqlSink",),
        },
    )
