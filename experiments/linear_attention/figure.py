"""Images beside their maps, a row an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lrputils.report.figures.style import COLORS, DIVERGING, WIDTH, Drawing, new_figure

_SIDE = 14  # pixels


def draw_maps(
    columns: Mapping[str, Tensor], *, title: str, together: Sequence[str] = ()
) -> Drawing:
    """Draw images, (count, pixels) under the name "image", and their maps, a column a name.

    A map's colours span its own largest score; the maps `together` share a span within a row.
    """
    count = min(map(len, columns.values()))
    size = {"rows": count, "columns": len(columns), "squeeze": False}
    figure, axes = new_figure(WIDTH, 0.6 + 0.9 * count, title=title, **size)
    for place, (name, scores) in enumerate(columns.items()):
        for row, panel in enumerate(axes[:, place]):
            sharing = [columns[other] for other in together] if name in together else [scores]
            most = float(max(each[row].abs().max() for each in sharing))
            colours = {"cmap": DIVERGING, "vmin": -most, "vmax": most}
            if name == "image":
                colours = {"cmap": "gray_r", "vmin": 0, "vmax": 1}
            panel.imshow(scores[row].unflatten(0, (_SIDE, _SIDE)), **colours)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set(visible=True, color=COLORS["faint"])
        axes[0, place].set_title(name, fontsize=10)
    return figure
