"""Plots as SVG, drawn without a display; lines have their names at their ends."""

import colorsys
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

# Distinct without colour vision too (Okabe & Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^")
_LABEL = 0.23  # inches from the name of a line to the next


@dataclass(frozen=True)
class Curve:
    """A line of a plot, left out without points; `colour` is that of its system on the page.

    `spread` is the length of the error bars, up and down; empty: none.
    """

    label: str
    x: list[int]
    y: list[float]
    colour: str
    dashed: bool = False
    spread: tuple[float, ...] = ()


def colours_of(systems: Iterable[str]) -> dict[str, str]:
    """A colour for each system of a page, none for two of them. Past the seventh, hues a golden angle apart."""
    names = list(dict.fromkeys(systems))
    drawn = (colorsys.hls_to_rgb(0.618034 * n % 1, 0.3 + 0.12 * (n % 3), 0.6) for n in range(len(names)))
    more = ("#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in drawn)
    return dict(zip(names, chain(_COLOURS, more), strict=False))


def lines_svg(
    title: str, x_label: str, curves: Sequence[Curve], *, y_label: str = "", ticks: Sequence[int] = ()
) -> bytes:
    """Curves over whole numbers; `ticks` are the marked ones, if not all. A dashed line beside a solid one of its
    colour has no name."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(title, x_label, y_label)
    curves = [curve for curve in curves if curve.y]
    for number, curve in enumerate(curves):
        look = {"color": curve.colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.4}
        look |= {"linestyle": "--", "alpha": 0.6} if curve.dashed else {}
        axes.errorbar(curve.x, curve.y, yerr=curve.spread or None, capsize=2, **look)
    if ticks:
        axes.set_xticks(ticks)
    if all(value.is_integer() for curve in curves for value in curve.y):  # beams and other counts
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    solid = {curve.colour for curve in curves if not curve.dashed}
    _name_ends(figure, axes, [curve for curve in curves if not curve.dashed or curve.colour not in solid])
    return _svg(figure)


def bars_svg(
    title: str, x_label: str, groups: Mapping[str, Sequence[float]], *, colours: Mapping[str, str], y_label: str = ""
) -> bytes:
    """Bars by system, side by side at each position, counted from 1."""
    figure, axes = _figure(title, x_label, y_label)
    width = 0.8 / len(groups)
    for number, (label, values) in enumerate(groups.items()):
        shifted = [place + 1 + (number - (len(groups) - 1) / 2) * width for place in range(len(values))]
        axes.bar(shifted, values, width, label=label, color=colours[label])
    _legend(figure, axes)
    return _svg(figure)


def _figure(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    # Figure instead of pyplot: no global state, no display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots(subplot_kw={"xlabel": x_label, "ylabel": y_label})
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _name_ends(figure: Any, axes: Any, curves: Sequence[Curve]) -> None:
    """The name of each line beside its last point, moved where two would overlap; many names make a taller figure."""
    figure.set_figheight(max(figure.get_figheight(), _LABEL * (len(curves) + 5)))
    low, high = axes.get_ylim()
    apart = _LABEL * (high - low) / (figure.get_figheight() - 1)
    curves = sorted(curves, key=lambda curve: curve.y[-1])
    heights = _spread([curve.y[-1] for curve in curves], apart, high - apart / 2)
    for curve, height in zip(curves, heights, strict=True):
        line = {"arrowstyle": "-", "color": curve.colour, "linewidth": 0.5, "alpha": 0.5}
        text = {"color": curve.colour, "fontsize": 8, "va": "center", "annotation_clip": False}
        end, place = (curve.x[-1], curve.y[-1]), (1.03, height)
        axes.annotate(curve.label, end, place, textcoords=axes.get_yaxis_transform(), arrowprops=line, **text)


def _spread(heights: Sequence[float], apart: float, top: float) -> list[float]:
    """Rising heights moved up until they are `apart`, then down below the top.

    [1, 1, 2] become [0, 1, 2] where names are 1 apart and the top is at 2.
    """
    placed: list[float] = []
    for height in heights:
        placed.append(max([height, *(before + apart for before in placed[-1:])]))
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], placed[i + 1] - apart if i + 1 < len(placed) else top)
    return placed


def _legend(figure: Any, axes: Any) -> None:
    # Outside the axes: a legend inside covers points.
    entries = axes.get_legend_handles_labels()
    figure.set_figheight(3.6 + _LABEL * -(-len(entries[1]) // 2))
    figure.legend(*entries, fontsize=8, frameon=False, loc="outside lower left", ncols=2)


def _svg(figure: Any) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    # Text stays text, and two pages of the same numbers are the same.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "argbeam"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
