"""Colours by role, for light and dark, and fonts: of reports and of drawings alike."""

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
"""Blue and orange stay apart for every common kind of colour blindness."""

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
