"""Colours by role for light and dark pages, as style sheets of pictures and pages.

Pictures name roles instead of colours, so that one style block serves both schemes. Print is always light.
"""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ink": "#1b2230",
    "muted": "#566072",
    "line": "#d3d8e0",
    "paper": "#ffffff",
    "panel": "#f4f6f9",
    "kin": "#0067a8",
    "target": "#b34700",
    "arrow": "#7d8798",
}
DARK: Mapping[str, str] = {
    "ink": "#e9ecf1",
    "muted": "#a5aebd",
    "line": "#3b4351",
    "paper": "#14181f",
    "panel": "#1d222b",
    "kin": "#62b8ef",
    "target": "#f4a340",
    "arrow": "#8792a4",
}
"""Blue and orange can be distinguished with every common kind of colour blindness."""

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two `#rrggbb` colours after WCAG, 1 to 21; text needs 4.5.

    >>> round(contrast("#000000", "#ffffff"), 1), contrast("#808080", "#808080")
    (21.0, 1.0)
    """
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def readable_on(background: str) -> str:
    """Black or white, whichever has more contrast.

    >>> readable_on("#fde725"), readable_on("#440154")
    ('#000000', '#ffffff')
    """
    return max("#000000", "#ffffff", key=lambda colour: contrast(colour, background))


def picture_style() -> str:
    """The style block of a picture: `nk-f-ROLE` fills, `nk-s-ROLE` strokes, `nk-halo` separates text from lines.

    A picture is transparent within a page; as a file of its own it has a background.
    """
    rules = [f".nk-picture text{{font-family:{FONTS}}}", ".nk-picture path,.nk-halo{stroke-linejoin:round}"]
    return "\n".join([*rules, *_roles(LIGHT), _dark("\n".join(_roles(DARK)))])


def page_style() -> str:
    """The same roles as CSS variables for pages: `var(--ink)` and so on."""
    return f":root{{color-scheme:light dark;{_variables(LIGHT)}}}\n" + _dark(f":root{{{_variables(DARK)}}}")


def _dark(rules: str) -> str:
    return f"@media screen and (prefers-color-scheme:dark){{\n{rules}\n}}"


def _roles(palette: Mapping[str, str]) -> list[str]:
    fills = [f".nk-f-{role}{{fill:{colour}}}" for role, colour in palette.items()]
    strokes = [f".nk-s-{role}{{stroke:{colour}}}" for role, colour in palette.items()]
    paper = palette["paper"]
    return [*fills, *strokes, f".nk-halo{{stroke:{paper}}}", f".nk-picture:root{{background:{paper}}}"]


def _variables(palette: Mapping[str, str]) -> str:
    return ";".join(f"--{role}:{colour}" for role, colour in palette.items())


def _luminance(colour: str) -> float:
    """Relative luminance of sRGB, 0 to 1."""
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
