"""Pictures inside a page: SVG that takes its ink from the page's style, so that one drawing serves light and dark."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

from fabench.views.plots.style import Theme, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Theme(ink="#010203", faint="#040506", paper="#070809")
"""Colours that stand for the page's own: `inline` puts its CSS variables in their place."""
_VARIABLES = {PAGE.ink: "var(--ink)", PAGE.faint: "var(--faint)", PAGE.paper: "var(--paper)"}


def inline(figure: Figure, label: str, prefix: str) -> str:
    """The figure as an <svg> element: scalable, named for screen readers, every id beginning with `prefix`."""
    stream = io.StringIO()
    with styled(PAGE):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?)\s{size}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}-', text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(label, quote=True)}"', 1).strip()
