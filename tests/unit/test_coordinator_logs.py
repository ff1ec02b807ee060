"""Log lines: one each, whatever is in them."""

from __future__ import annotations

import json
import logging

from coordinator.runtime.logs import LineFormatter, printable
from coordinator.runtime.metrics import Exposition


def line(message, *arguments, as_json=False, trace=False):
    record = logging.LogRecord("cleancut.x", logging.WARNING, __file__, 1, message, arguments, None)
    if trace:
        error = ValueError("first\nsecond\x1b[31m")
        record.exc_info = (ValueError, error, None)
    return LineFormatter(as_json=as_json, coordinator="c1").format(record)


def test_a_line_of_text_holds_no_control_characters():
    text = line("participant %s", "x\x1b[2J\r\n\u202ey\u2028")
    assert text.isprintable()
    assert text.endswith("warning c1 participant x\\x1b[2J\\r\\n\\u202ey\\u2028")


def test_a_traceback_is_part_of_its_line():
    text = line("failed", trace=True)
    assert text.isprintable()
    assert "ValueError: first | second\\x1b[31m" in text


def test_a_json_line_is_one_document():
    text = line("a\nb", as_json=True, trace=True)
    assert "\n" not in text
    document = json.loads(text)
    assert (document["level"], document["message"], document["coordinator"]) == ("warning", "a\nb", "c1")
    assert "ValueError" in document["trace"]


def test_what_is_printable_stays_as_it_is():
    assert printable("grün 漢字") == "grün 漢字"


def test_metrics_escape_their_label_values_and_are_sorted():
    out = Exposition()
    out.gauge("a", "About a.", 1)
    out.counters("b_total", "About b.", "what", {'y"\n\\': 2, "x": 1.5})
    assert out.text().splitlines() == [
        "# HELP cleancut_a About a.",
        "# TYPE cleancut_a gauge",
        "cleancut_a 1",
        "# HELP cleancut_b_total About b.",
        "# TYPE cleancut_b_total counter",
        'cleancut_b_total{what="x"} 1.5',
        'cleancut_b_total{what="y\\"\\n\\\\"} 2',
    ]
