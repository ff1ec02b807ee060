"""A space-time diagram in SVG, by the standard library alone.

Participants are horizontal lines, time goes to the right, messages are arrows. What to show is a `Scene`; this module knows
nothing of runs. Every name and sentence is escaped: whoever chose it may be hostile. The same scene gives the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from simulations.diagram_style import DEFINITIONS, LEGEND, STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable

COORDINATORS: Final = "\0coordinators"
"""The lane of the coordinators: no name of a participant has a zero byte."""
WIDTH: Final = 1200
LEFT: Final = 104
RIGHT: Final = 28
LANE: Final = 74
"""Between two participants' lines."""
FAULT_ROWS_MAX: Final = 4
MARKERS_MANY: Final = 48
"""More are drawn thin, so that they do not hide what lies beneath."""
_FAULT_ROW: Final = 15
_LETTER: Final = 6.2
"""Typical width of a letter in labels; only for keeping them apart."""
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True, kw_only=True)
class Arrow:
    """Something that went from one line to another."""

    source: str
    target: str
    put: int
    arrived: int | None
    """None: never."""
    role: str
    """``message``, ``flight`` (recorded as in flight), ``orphan``, ``marker``, ``other`` (marker of another epoch), ``order``."""
    title: str


@dataclass(slots=True, kw_only=True)
class Mark:
    """An instant on a line."""

    who: str
    at: int
    kind: str
    """On participants: ``cut``, ``othercut``, ``crash``, ``tick`` (it started, or ended by itself), ``stored``; on
    coordinators: ``started``, ``sealed``, ``committed``, ``aborted``, ``leader``, ``crash``."""
    title: str
    label: str = ""


@dataclass(slots=True, kw_only=True)
class Span:
    """A stretch of time on a line."""

    who: str
    """"" for the row of faults."""
    begin: int
    end: int
    kind: str
    """``alive``, ``pause``, ``partition``; in the row of faults: ``fault``."""
    title: str
    label: str = ""


@dataclass(slots=True, kw_only=True)
class Scene:
    """What a picture shows. Instants in nanoseconds."""

    title: str
    caption: list[str] = field(default_factory=list)
    begin: int
    end: int
    participants: list[str]
    """From top to bottom."""
    arrows: list[Arrow] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    broken_at: int | None = None
    """When an invariant was found to be broken."""
    notes: list[str] = field(default_factory=list)
    """Under the picture."""


def text(value: str) -> str:
    """For a text or title element: nothing in it is markup or illegal in XML."""
    return escape(_NOT_XML.sub("\ufffd", value))


def draw(scene: Scene) -> str:
    """The picture as an SVG document."""
    return _Picture(scene).draw()


class _Picture:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.faults, self.unlabelled = _stack(scene, self)
        rows = 1 + max((row for _, row in self.faults), default=-1)
        self.many = sum(1 for arrow in scene.arrows if arrow.role == "marker") > MARKERS_MANY
        self.caption_y = 58
        self.top = self.caption_y + 20 * len(scene.caption) + 26
        self.faults_y = self.top
        if rows:
            self.top += rows * _FAULT_ROW + 34
        self.lanes = {COORDINATORS: self.top + 12}
        for number, name in enumerate(scene.participants):
            self.lanes[name] = self.top + 12 + 82 + number * LANE
        self.axis_y = self.top + 12 + 82 + (len(scene.participants) - 1) * LANE + 52
        self.legend_y = self.axis_y + 52
        self.notes_y = self.legend_y + 78
        self.height = self.notes_y + 20 * len(scene.notes) - (8 if scene.notes else 10)

    def x(self, at: int) -> float:
        """Where an instant is."""
        scene = self.scene
        return LEFT + (at - scene.begin) * (WIDTH - LEFT - RIGHT) / max(1, scene.end - scene.begin)

    def draw(self) -> str:
        scene = self.scene
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        font = 'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
            f"<title>{text(scene.title)}</title>",
            f"<desc>{text(' '.join(scene.caption))}</desc>",
            STYLE,
            DEFINITIONS,
            f'<clipPath id="plot"><rect x="{LEFT}" y="0" width="{WIDTH - LEFT - RIGHT}" height="{self.axis_y}"/></clipPath>',
            f'<rect class="page" width="{WIDTH}" height="{self.height}"/>',
            f'<text class="head" x="20" y="34">{text(scene.title)}</text>',
        ]
        for number, line in enumerate(scene.caption):
            parts.append(f'<text x="20" y="{self.caption_y + 20 * number}">{text(line)}</text>')
        parts += self._axis()
        parts.append('<g clip-path="url(#plot)">')
        parts += self._past()
        parts += self._spans()
        order = ("order", "other", "message", "marker", "flight", "orphan")
        for role in order:
            parts += [self._arrow(arrow) for arrow in scene.arrows if arrow.role == role]
        parts += self._cut_line()
        parts += self._bundles()
        parts += [self._mark(mark) for mark in scene.marks if mark.who != COORDINATORS]
        parts += self._fault_row()
        parts.append("</g>")
        parts += self._coordinators()
        parts += self._names()
        parts += self._legend()
        for number, line in enumerate(scene.notes):
            parts.append(f'<text class="soft" x="20" y="{self.notes_y + 20 * number}">{text(line)}</text>')
        parts.append("</svg>")
        return "\n".join(parts) + "\n"

    # --- what lies behind ---------------------------------------------------------------------------------------------

    def _axis(self) -> Iterable[str]:
        scene = self.scene
        y = self.axis_y
        step = _tick(scene.end - scene.begin)
        digits = 0 if step >= 1_000_000 else 1 if step >= 100_000 else 3
        yield f'<path class="axis" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        at = -(-scene.begin // step) * step
        while at <= scene.end:
            x = self.x(at)
            yield f'<path class="grid" d="M{x:.1f} {self.lanes[COORDINATORS] - 22}V{y + 5}"/>'
            yield f'<text class="soft mid" x="{x:.1f}" y="{y + 20}">{at / 1e6:,.{digits}f}</text>'
            at += step
        yield f'<text class="soft" x="20" y="{y + 20}">virtual ms</text>'

    def _past(self) -> Iterable[str]:
        """The side of the cut that is recorded."""
        points = self._cut_points()
        if len(points) < 2:
            return
        (first_x, first_y), (last_x, last_y) = points[0], points[-1]
        outline = [(LEFT, first_y - 34), (first_x, first_y - 34), *points, (last_x, last_y + 34), (LEFT, last_y + 34)]
        corners = " ".join(f"{x:.1f},{y:.0f}" for x, y in outline)
        yield f'<polygon class="past" points="{corners}"/>'

    def _spans(self) -> Iterable[str]:
        for name in self._with_gaps():
            yield f'<path class="down" d="M{LEFT} {self.lanes[name]}H{WIDTH - RIGHT}"/>'
        heights = {"alive": 0, "pause": 16, "partition": 44}
        for kind in ("partition", "alive", "pause"):
            for span in self.scene.spans:
                if span.kind != kind or span.who not in self.lanes:
                    continue
                y = self.lanes[span.who]
                left = max(self.x(span.begin), LEFT - 5.0)
                right = min(self.x(span.end), WIDTH - RIGHT + 5.0)
                if right < left:
                    continue
                if kind == "alive":
                    yield f'<path class="lane" d="M{left:.1f} {y}H{right:.1f}"/>'
                    continue
                yield (
                    f'<rect class="{kind}" x="{left:.1f}" y="{y - heights[kind] / 2:.0f}" width="{right - left:.1f}" '
                    f'height="{heights[kind]}"><title>{text(span.title)}</title></rect>'
                )

    def _with_gaps(self) -> list[str]:
        """Participants that do not run all the time."""
        scene = self.scene
        whole = {
            span.who
            for span in scene.spans
            if span.kind == "alive" and span.begin <= scene.begin and span.end >= scene.end
        }
        return [name for name in scene.participants if name not in whole]

    def _fault_row(self) -> Iterable[str]:
        for span, row in self.faults:
            y = self.faults_y + row * _FAULT_ROW
            left = max(self.x(span.begin), LEFT + 0.0)
            width = max(3.0, min(self.x(span.end), WIDTH - RIGHT + 0.0) - left)
            yield f"<g><title>{text(span.title)}</title>"
            yield f'<rect class="fault" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_FAULT_ROW - 2}"/>'
            yield f'<text class="tiny" x="{left + 4:.1f}" y="{y + 10}">{text(span.label)}</text></g>'

    # --- arrows and the cut -------------------------------------------------------------------------------------------

    def _arrow(self, arrow: Arrow) -> str:
        x1, y1 = self.x(arrow.put), float(self.lanes[arrow.source])
        y2 = float(self.lanes[arrow.target])
        role = arrow.role
        if arrow.arrived is None:
            # Nobody received it: it ends between the lines; beyond the cut, if that has it.
            beyond = max((x for x, _ in self._cut_points()), default=0.0) if arrow.role == "flight" else 0.0
            x2, y2 = max(x1, beyond) + 46.0, y1 + 0.6 * (y2 - y1)
            role += " lost"
        else:
            x2 = self.x(arrow.arrived)
        if self.many and arrow.role == "marker":
            role += " many"
        return (
            f'<path class="{role}" d="M{x1:.1f} {y1:.0f}L{x2:.1f} {y2:.0f}" marker-end="url(#h-{arrow.role})">'
            f"<title>{text(arrow.title)}</title></path>"
        )

    def _cut_points(self) -> list[tuple[float, float]]:
        """Of the participants that recorded, from top to bottom."""
        at = {mark.who: mark.at for mark in self.scene.marks if mark.kind == "cut"}
        return [(self.x(at[name]), float(self.lanes[name])) for name in self.scene.participants if name in at]

    def _cut_line(self) -> Iterable[str]:
        points = self._cut_points()
        if not points:
            return
        (first_x, first_y), last_y = points[0], points[-1][1]
        path = "L".join(f"{x:.1f} {y:.0f}" for x, y in points)
        yield f'<path class="cutline" d="M{first_x:.1f} {first_y - 34:.0f}L{path}V{last_y + 34:.0f}"/>'
        yield f'<text class="cutname end" x="{first_x - 8:.1f}" y="{first_y - 22:.0f}">before the cut</text>'
        yield f'<text class="cutname" x="{first_x + 8:.1f}" y="{first_y - 22:.0f}">after it</text>'

    def _bundles(self) -> Iterable[str]:
        """How many, where emphasised arrows lie on each other."""
        counts: dict[tuple[str, str, int, int], int] = {}
        for arrow in self.scene.arrows:
            if arrow.role in {"flight", "orphan"} and arrow.arrived is not None:
                key = (arrow.source, arrow.target, arrow.put, arrow.arrived)
                counts[key] = counts.get(key, 0) + 1
        for (source, target, put, arrived), count in counts.items():
            if count > 1:
                x = self.x(put) * 0.7 + self.x(arrived) * 0.3
                y = self.lanes[source] * 0.7 + self.lanes[target] * 0.3
                yield f'<text class="count mid" x="{x:.1f}" y="{y + 4:.0f}">{count}</text>'

    def _mark(self, mark: Mark) -> str:
        x, y = self.x(mark.at), self.lanes[mark.who]
        match mark.kind:
            case "cut":
                shape = f'<circle class="cut" cx="{x:.1f}" cy="{y}" r="7"/>'
            case "othercut":
                shape = f'<circle class="othercut" cx="{x:.1f}" cy="{y}" r="4.5"/>'
            case "crash":
                shape = f'<path class="crash" d="M{x - 7:.1f} {y - 7}l14 14m0 -14l-14 14"/>'
            case "stored":
                shape = f'<rect class="stored" x="{x - 5:.1f}" y="{y - 5}" width="10" height="10"/>'
            case _:
                shape = f'<path class="begin" d="M{x:.1f} {y - 8}v16"/>'
        return f"<g><title>{text(mark.title)}</title>{shape}</g>"

    # --- coordinators, names, legend ----------------------------------------------------------------------------------

    def _coordinators(self) -> Iterable[str]:
        scene = self.scene
        y = self.lanes[COORDINATORS]
        yield f'<path class="lane" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        free = {-13: LEFT - 6.0, 22: LEFT - 6.0, -27: LEFT - 6.0, 36: LEFT - 6.0}
        marks = sorted((mark for mark in scene.marks if mark.who == COORDINATORS), key=lambda mark: mark.at)
        later = []
        for mark in marks:
            if mark.at > scene.end:
                later.append(f"{mark.label} {(mark.at - scene.end) / 1e6:,.0f} ms later")
                continue
            if mark.at < scene.begin:
                continue
            x = self.x(mark.at)
            yield f'<g><title>{text(mark.title)}</title><path class="{mark.kind}" d="{_shape(mark.kind, x, y)}"/>'
            width = len(mark.label) * _LETTER
            begin = min(x - 5, WIDTH - RIGHT - width)
            level = next((level for level, taken in free.items() if taken <= begin), None)
            if level is not None:
                free[level] = begin + width + 8
                yield f'<text class="small" x="{begin:.1f}" y="{y + level}">{text(mark.label)}</text>'
            yield "</g>"
        if scene.broken_at is not None and scene.broken_at > scene.end:
            later.append(f"found broken {(scene.broken_at - scene.end) / 1e6:,.0f} ms later")
        if later:
            words = ", ".join(later[:3]) + (f" and {len(later) - 3} more" if len(later) > 3 else "") + " \u2192"
            begin = WIDTH - RIGHT - len(words) * _LETTER
            level = next((level for level, taken in free.items() if taken <= begin), 36)
            yield f'<text class="small end" x="{WIDTH - RIGHT}" y="{y + level}">{text(words)}</text>'
        if scene.broken_at is not None and scene.begin <= scene.broken_at <= scene.end:
            x = self.x(scene.broken_at)
            yield f'<path class="broken" d="M{x:.1f} {y - 20}V{self.axis_y}"><title>here it was found</title></path>'

    def _names(self) -> Iterable[str]:
        yield f'<text class="end name" x="{LEFT - 10}" y="{self.lanes[COORDINATORS] + 5}">coordinators</text>'
        if self.faults:
            yield f'<text class="end soft" x="{LEFT - 10}" y="{self.faults_y + 11}">faults</text>'
        for name in self.scene.participants:
            short = name if len(name) <= 13 else name[:12] + "\u2026"
            yield (
                f'<text class="end name" x="{LEFT - 10}" y="{self.lanes[name] + 5}">'
                f"<title>{text(name)}</title>{text(short)}</text>"
            )

    def _legend(self) -> Iterable[str]:
        roles = {arrow.role for arrow in self.scene.arrows}
        kinds = {mark.kind for mark in self.scene.marks} | {span.kind for span in self.scene.spans}
        if any(arrow.arrived is None for arrow in self.scene.arrows):
            roles.add("lost")
        if self._with_gaps():
            roles.add("down")
        column = row = 0
        for key, drawing, words in LEGEND:
            if key not in roles and key not in kinds:
                continue
            x, y = 20 + column * 290, self.legend_y + row * 24
            yield f'<g transform="translate({x} {y})">{drawing}<text x="44" y="4">{text(words)}</text></g>'
            row += 1
            if row == 3:
                column, row = column + 1, 0


def _stack(scene: Scene, picture: _Picture) -> tuple[list[tuple[Span, int]], int]:
    """Faults in rows, so that their names do not overlap; and how many found no room."""
    free: list[float] = []
    placed: list[tuple[Span, int]] = []
    left_out = 0
    for span in sorted((span for span in scene.spans if span.kind == "fault"), key=lambda span: span.begin):
        left = max(picture.x(span.begin), LEFT + 0.0)
        right = max(min(picture.x(span.end), WIDTH - RIGHT + 0.0), left + len(span.label) * _LETTER) + 8
        row = next((row for row, taken in enumerate(free) if taken <= left), len(free))
        if row == FAULT_ROWS_MAX:
            left_out += 1
            continue
        if row == len(free):
            free.append(0.0)
        free[row] = right
        placed.append((span, row))
    return placed, left_out


def _tick(length: int) -> int:
    """Nanoseconds between two numbers on the axis: 1, 2 or 5 of a power of ten, some eight of them."""
    step = 1000
    while True:
        for factor in (1, 2, 5):
            if step * factor * 10 >= length:
                return step * factor
        step *= 10


def _shape(kind: str, x: float, y: int) -> str:
    match kind:
        case "started":
            return f"M{x - 5:.1f} {y - 8}l12 8l-12 8z"
        case "sealed":
            return f"M{x:.1f} {y - 8}l8 8l-8 8l-8 -8z"
        case "committed":
            return f"M{x - 8:.1f} {y}a8 8 0 1 0 16 0a8 8 0 1 0 -16 0z"
        case "aborted" | "crash":
            return f"M{x - 7:.1f} {y - 7}l14 14m0 -14l-14 14"
        case _:
            return f"M{x - 2:.1f} {y - 9}h4v18h-4z"
