"""Prometheus' text format, written by hand: a dozen numbers do not need a library.

Label values are names of ours (states, causes), escaped anyway; ids of participants are not labels, so that the number
of series does not grow with the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Number = int | float


class Exposition:
    """Collects metrics and writes them as text."""

    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, text: str, value: Number) -> None:
        """A number that goes up and down."""
        self._family(name, "gauge", text, {"": value}, "")

    def counter(self, name: str, text: str, value: Number) -> None:
        """A number that only grows while the process lives."""
        self._family(name, "counter", text, {"": value}, "")

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, Number]) -> None:
        """One gauge per label value."""
        self._family(name, "gauge", text, values, label)

    def counters(self, name: str, text: str, label: str, values: Mapping[str, Number]) -> None:
        """One counter per label value."""
        self._family(name, "counter", text, values, label)

    def _family(self, name: str, kind: str, text: str, values: Mapping[str, Number], label: str) -> None:
        self._lines += [f"# HELP cleancut_{name} {text}", f"# TYPE cleancut_{name} {kind}"]
        for value_of_label in sorted(values):
            labels = f'{{{label}="{_escaped(value_of_label)}"}}' if label else ""
            self._lines.append(f"cleancut_{name}{labels} {values[value_of_label]}")

    def text(self) -> str:
        """The whole exposition."""
        return "\n".join(self._lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
