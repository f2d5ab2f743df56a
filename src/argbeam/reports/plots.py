"""Plots as PNG, drawn without a display."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Distinct without colour vision too (Okabe & Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^")  # one for each seven lines


@dataclass(frozen=True)
class Curve:
    """A line of a plot, left out without points. A `dashed` line has the colour of the line before it.

    `spread` is the length of the error bars, up and down; empty: none.
    """

    label: str
    x: list[int]
    y: list[float]
    dashed: bool = False
    spread: tuple[float, ...] = ()


def lines_png(
    title: str, x_label: str, curves: Sequence[Curve], *, y_label: str = "", ticks: Sequence[int] = ()
) -> bytes:
    """Curves over whole numbers; `ticks` are the marked ones, if not all."""
    figure, axes = _figure(title, x_label, y_label)
    number = -1
    for curve in curves:
        number += not curve.dashed
        if curve.y:
            colour = _COLOURS[number % len(_COLOURS)]
            marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
            look = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}
            look |= {"linestyle": "--", "alpha": 0.6} if curve.dashed else {}
            axes.errorbar(curve.x, curve.y, yerr=curve.spread or None, capsize=2, label=curve.label, **look)
    if ticks:
        axes.set_xticks(ticks)
    return _png(figure, axes)


def bars_png(title: str, x_label: str, groups: Mapping[str, Sequence[float]]) -> bytes:
    """Bars by label, side by side at each position, counted from 1."""
    figure, axes = _figure(title, x_label, "")
    width = 0.8 / len(groups)
    for number, (label, values) in enumerate(groups.items()):
        shifted = [place + 1 + (number - (len(groups) - 1) / 2) * width for place in range(len(values))]
        axes.bar(shifted, values, width, label=label, color=_COLOURS[number % len(_COLOURS)])
    return _png(figure, axes)


def _figure(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    # Figure instead of pyplot: no global state, no display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots(subplot_kw={"xlabel": x_label, "ylabel": y_label})
    axes.set_title(title, fontsize=11, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Any, axes: Any) -> bytes:
    entries = axes.get_legend_handles_labels()
    if len(entries[1]) > 4:  # too many for a legend inside the plot
        figure.set_size_inches(8.5, 4.2)
        figure.legend(*entries, fontsize=8, frameon=False, loc="outside right upper")
    else:
        axes.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
