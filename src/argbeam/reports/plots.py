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
_FEW = 6  # lines that are named at their ends; more have a legend


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
    """Curves over whole numbers; `ticks` are the marked ones, if not all."""
    figure, axes = _figure(title, x_label, y_label)
    curves = [curve for curve in curves if curve.y]
    for number, curve in enumerate(curves):
        look = {"color": curve.colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.4}
        look |= {"linestyle": "--", "alpha": 0.6} if curve.dashed else {}
        axes.errorbar(curve.x, curve.y, yerr=curve.spread or None, capsize=2, label=curve.label, **look)
    if ticks:
        axes.set_xticks(ticks)
    if len(curves) > _FEW:
        _legend(figure, axes)
    else:
        _name_ends(axes, curves)
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


def _name_ends(axes: Any, curves: Sequence[Curve]) -> None:
    """The name of each line beside its last point, moved up where two would overlap."""
    low, high = axes.get_ylim()
    least, lowest = 0.065 * (high - low), low
    for curve in sorted(curves, key=lambda curve: curve.y[-1]):
        lowest = max(curve.y[-1], lowest)
        end, place = (curve.x[-1], curve.y[-1]), (1.03, lowest)
        line = {"arrowstyle": "-", "color": curve.colour, "linewidth": 0.5, "alpha": 0.5}
        text = {"color": curve.colour, "fontsize": 8, "va": "center", "annotation_clip": False}
        axes.annotate(curve.label, end, place, textcoords=axes.get_yaxis_transform(), arrowprops=line, **text)
        lowest += least


def _legend(figure: Any, axes: Any) -> None:
    # Outside the axes: a legend inside covers points.
    entries = axes.get_legend_handles_labels()
    many = len(entries[1]) > 4
    figure.set_size_inches(*((8.5, 4.2) if many else (6, 3.9)))
    place = {"loc": "outside right upper"} if many else {"loc": "outside lower left", "ncols": 2}
    figure.legend(*entries, fontsize=8, frameon=False, **place)


def _svg(figure: Any) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    # Text stays text, and two pages of the same numbers are the same.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "argbeam"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
