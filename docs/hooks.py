"""Build steps of the manual: formulas are drawn as SVG, and doctests become code blocks. No network is needed.

mkdocs calls the functions `on_*` (see `hooks` in `mkdocs.yml`). Formulas are drawn by matplotlib, which reads a part of
TeX; `SPELLINGS` rewrites the usual short forms. A formula that it cannot read stops a strict build.
"""

import html
import logging
import re
from functools import cache
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

LOG = logging.getLogger("mkdocs.hooks.formulas")
FONT = FontProperties(size=100, math_fontfamily="stix")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
PROMPT = re.compile(r"^( *)>>> ")
SPELLINGS = (
    (r"\\(?:t|d)frac(?![a-zA-Z])", r"\\frac"),
    (r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
    (r"\\(math[a-z]+)\s+([A-Za-z])", r"\\\1{\2}"),
    (r"\\(?:text|operatorname)\{", r"\\mathrm{"),
    (r"\\([lg])e(?![a-zA-Z])", r"\\\1eq"),
    (r"\\(?:Big|big)[lr]?(?![a-zA-Z])", ""),
    (r"\\\|", r"\\Vert "),
    (r"⊤", r"\\top "),
    (r"√", r"\\surd "),
)


class Doctests(Preprocessor):
    """Fence paragraphs that begin with `>>>`, which Markdown would read as quotes."""

    def run(self, lines: list[str]) -> list[str]:
        """Lines of a page or docstring, with fences around its doctests."""
        result: list[str] = []
        inside, fenced = "", False
        for line in lines:
            fenced ^= line.lstrip().startswith("```")
            prompt = PROMPT.match(line)
            if not fenced and not inside and prompt:
                inside = prompt[1] + "```"
                result += ["", inside + "pycon"]
            elif inside and not line.strip():
                result.append(inside)
                inside = ""
            result.append(line)
        return [*result, inside] if inside else result


class Doctested(Extension):
    """Registers `Doctests` before fenced code is read."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called by Markdown."""
        md.preprocessors.register(Doctests(md), "doctests", 40)


def on_config(config: Any) -> Any:
    """Add the extension for pages and for docstrings."""
    config.markdown_extensions.append(Doctested())
    return config


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Draw all formulas of a page."""

    def drawn(match: re.Match[str]) -> str:
        formula = html.unescape(match[2]).strip()
        try:
            return svg(formula, display=match[1] == "div")
        except ValueError as error:
            LOG.warning("%s: cannot draw $%s$: %s", page.file.src_uri, formula, str(error).splitlines()[-1])
            return f"<code>{html.escape(formula)}</code>"

    return FORMULA.sub(drawn, content)


@cache
def svg(formula: str, display: bool) -> str:
    """A formula as an SVG element in the colour and size of the text around it."""
    readable = " ".join(formula.split())
    for pattern, replacement in SPELLINGS:
        readable = re.sub(pattern, replacement, readable)
    if display:
        readable = readable.replace(r"\frac", r"\dfrac")
    outline = TextPath((0, 0), f"${readable}$", prop=FONT)
    (left, low), (right, high) = outline.get_extents().get_points()
    em = 86  # units of the drawing that are one em of the page
    steps = []
    for points, code in outline.iter_segments(curves=True, simplify=False):
        if code == Outline.CLOSEPOLY:
            steps.append("Z")
        else:
            numbers = (f"{value * sign:.0f}" for value, sign in zip(points, (1, -1) * len(points)))  # noqa: B905
            steps.append({1: "M", 2: "L", 3: "Q", 4: "C"}[int(code)] + " ".join(numbers))
    box = f"{left - 2:.0f} {-high - 2:.0f} {right - left + 4:.0f} {high - low + 4:.0f}"
    width, height, depth = ((value / em) for value in (right - left + 4, high - low + 4, low - 2))
    style = f"width:{width:.2f}em;height:{height:.2f}em;vertical-align:{depth:.2f}em"
    label = html.escape(formula, quote=True)
    picture = (
        f'<svg class="formula" role="img" aria-label="{label}" viewBox="{box}" style="{style}" fill="currentColor">'
        f'<path d="{"".join(steps)}"/></svg>'
    )
    return f'<div class="formula">{picture}</div>' if display else picture
