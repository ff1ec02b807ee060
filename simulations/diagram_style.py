"""Colours, arrow heads and legend of `simulations.diagram`.

Colours are classes, with a second set for viewers that prefer a dark page; the background is part of the picture, so that
it is readable wherever it is put. Plain rules only: some renderers know no CSS variables.
"""

from __future__ import annotations

from typing import Final

_HEADS: Final = {"message": 7, "flight": 5, "orphan": 5, "marker": 6, "other": 6, "order": 6}
_LIGHT: Final = {
    "page": "#ffffff",
    "text": "#1f2328",
    "soft": "#59636e",
    "grid": "#eaeef2",
    "lane": "#57606a",
    "message": "#8c959f",
    "flight": "#d9480f",
    "marker": "#0969da",
    "cut": "#8250df",
    "red": "#cf222e",
    "green": "#1a7f37",
    "pause": "#afb8c1",
}
_DARK: Final = {
    "page": "#0d1117",
    "text": "#e6edf3",
    "soft": "#9198a1",
    "grid": "#21262d",
    "lane": "#9ea7b3",
    "message": "#6e7681",
    "flight": "#ff9a4d",
    "marker": "#58a6ff",
    "cut": "#c297ff",
    "red": "#ff7b72",
    "green": "#3fb950",
    "pause": "#656c76",
}


def _colours(of: dict[str, str]) -> str:
    strokes = (
        (".axis,.lane,.begin", "lane"),
        (".down", "soft"),
        (".grid", "grid"),
        (".count", "page"),
        (".message", "message"),
        (".flight", "flight"),
        (".marker,.other", "marker"),
        (".order", "soft"),
        (".orphan,.crash,.aborted,.broken", "red"),
        (".cutline,.othercut,.stored", "cut"),
    )
    fills = (
        (".page,.othercut,.stored", "page"),
        ("text", "text"),
        (".soft,.h-order", "soft"),
        (".h-message", "message"),
        (".h-flight,.count", "flight"),
        (".h-marker,.h-other,.sealed", "marker"),
        (".h-orphan,.partition,.fault", "red"),
        (".cut,.past,.cutname", "cut"),
        (".committed", "green"),
        (".started,.leader", "soft"),
        (".pause", "pause"),
    )
    rules = [f"{names}{{stroke:{of[colour]}}}" for names, colour in strokes]
    rules += [f"{names}{{fill:{of[colour]}}}" for names, colour in fills]
    return "".join(rules)


STYLE: Final = (
    "<style>"
    "path{fill:none}text.head{font-size:19px;font-weight:600}.name{font-weight:600}.end{text-anchor:end}"
    ".mid{text-anchor:middle}.small,.cutname{font-size:12px}.tiny{font-size:11px}.count{font-size:12px;font-weight:700;stroke-width:4;paint-order:stroke}.cutname{font-weight:600}"
    ".lane{stroke-width:1.6}.down{stroke-width:.8;stroke-dasharray:2 6}.begin{stroke-width:2}.message{stroke-width:1.1}"
    ".flight,.orphan{stroke-width:2.8}.marker{stroke-width:1.4;stroke-dasharray:6 4}.many{stroke-width:.8;opacity:.45}.lost{stroke-dasharray:3 3}"
    ".other{stroke-width:.9;stroke-dasharray:2 4;opacity:.7}.order{stroke-width:1;stroke-dasharray:1 4}"
    ".cutline{stroke-width:2.6}.cut,.othercut,.stored{stroke-width:1.6}.crash,.aborted{stroke-width:3}"
    ".past{opacity:.09}.partition{opacity:.14}.fault{opacity:.25}.pause{opacity:.8}.broken{stroke-width:2;stroke-dasharray:8 4}"
    + _colours(_LIGHT)
    + "@media (prefers-color-scheme:dark){"
    + _colours(_DARK)
    + "}</style>"
)
DEFINITIONS: Final = (
    "<defs>"
    + "".join(
        f'<marker id="h-{role}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" '
        f'orient="auto"><path class="h-{role}" d="M0 1L10 5L0 9z"/></marker>'
        for role, size in _HEADS.items()
    )
    + "</defs>"
)


def _sample(role: str) -> str:
    return f'<path class="{role}" d="M0 0H34" marker-end="url(#h-{role.split(maxsplit=1)[0]})"/>'


LEGEND: Final = (
    (
        "cut",
        '<path class="cutline" d="M16 -10V10"/><circle class="cut" cx="16" cy="0" r="6"/>',
        "a participant records itself: the cut",
    ),
    ("flight", _sample("flight"), "in flight at the cut, and recorded"),
    ("orphan", _sample("orphan"), "orphan: received before, sent after"),
    ("marker", _sample("marker"), "marker of this epoch"),
    ("message", _sample("message"), "message, from put to delivery"),
    ("lost", '<path class="message lost" d="M0 0H24" marker-end="url(#h-message)"/>', "never delivered"),
    ("order", _sample("order"), "the order to start"),
    ("stored", '<rect class="stored" x="11" y="-5" width="10" height="10"/>', "its local snapshot is durable"),
    ("othercut", '<circle class="othercut" cx="16" cy="0" r="4.5"/>', "cut of another epoch"),
    ("crash", '<path class="crash" d="M9 -7l14 14m0 -14l-14 14"/>', "crash"),
    ("down", '<path class="down" d="M0 0H34"/>', "not running"),
    ("pause", '<rect class="pause" x="2" y="-8" width="30" height="16"/>', "paused"),
    ("partition", '<rect class="partition" x="2" y="-9" width="30" height="18"/>', "cut off from others"),
)
"""What it explains, how it looks, and in words; three to a column."""
