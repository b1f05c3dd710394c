"""Pure: SVG as text. Everything that comes from a history passes `escaped` on its way in.

Two layers share each plot. Shapes of the time axis lie in groups of class `t`, which the page
stretches when a reader zooms; strokes keep their width. Texts would be stretched with them, so they
stand apart: their place on the axis in `data-x`, their distance from it in `data-dx`, and in
`data-w` the room that grows with the zoom. The page moves and hides them.
"""

from collections.abc import Iterable, Sequence
from html import escape

GLYPH_PX = 6.1
"""Mean width of a character of the labels (11 px, system font): enough to know what fits."""


def escaped(value: object) -> str:
    """For text and for attributes in double quotes."""
    return escape(str(value), quote=True)


def number(value: float) -> str:
    """Short: one decimal place, none if it is zero."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if value else "0"


def attributes(values: dict[str, object]) -> str:
    """` name="value"` for each; a trailing underscore ("class_") and None are left out."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in values.items()
        if value is not None
    )


def _attribute(value: object) -> str:
    return number(value) if isinstance(value, float) else escaped(value)


def element(name: str, *children: str, **values: object) -> str:
    """One element; children are finished SVG."""
    inner = "".join(children)
    if inner:
        return f"<{name}{attributes(values)}>{inner}</{name}>"
    return f"<{name}{attributes(values)}/>"


def text(content: object, **values: object) -> str:
    """A text element; `content` is escaped."""
    return f"<text{attributes(values)}>{escaped(content)}</text>"


def rect(x: float, y: float, width: float, height: float, **values: object) -> str:
    """A rectangle; a sliver is widened so that it can be seen."""
    return element("rect", x=x, y=y, width=max(0.8, width), height=height, **values)


def line(x1: float, y1: float, x2: float, y2: float, **values: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **values)


def path(points: Iterable[tuple[float, float]], **values: object) -> str:
    """A line through points."""
    steps = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return element("path", d="M" + steps, **values) if steps else ""


def bars(heights: Sequence[float], *, width: float, base: Sequence[float], **values: object) -> str:
    """Adjacent bars as one shape, each standing on its `base` (y of the bottom); none for 0."""
    steps = [
        f"M{index * width:.3f},{number(foot)}v{number(-height)}h{width:.3f}v{number(height)}z"
        for index, (height, foot) in enumerate(zip(heights, base, strict=True))
        if height > 0
    ]
    return element("path", d="".join(steps), **values) if steps else ""


def dots(points: Iterable[tuple[float, float]], **values: object) -> str:
    """Dots as strokes of no length with round ends, which a zoom does not make ellipses."""
    steps = "".join(f"M{number(x)},{number(y)}h0" for x, y in points)
    return element("path", d=steps, **values) if steps else ""


def label(
    content: str,
    *,
    x: float,
    y: float,
    class_: str,
    room: float | None,
    dx: float = 0.0,
    until: float | None = None,
) -> str:
    """A text at `x` + `dx` on the time axis, shown while `room` pixels from `x` on are enough for
    it; with None it needs none. Not shown once `until` pixels would be enough for it."""
    needed = dx + len(content) * GLYPH_PX
    hidden = "hidden" if room is not None and needed > room else None
    return text(
        content,
        class_=f"m {class_}",
        x=x + dx,
        y=y,
        data_x=x,
        data_dx=dx,
        data_w=None if room is None else float(room),
        data_until=until,
        visibility=hidden,
    )
