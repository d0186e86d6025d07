"""Draws `docs/images/demo.svg` from what `nearkin demo` really prints.

FORCE_COLOR=1 nearkin --quiet demo | python docs/picture.py
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FRAME = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>What nearkin demo prints</title>
<style>.t {{ font: {char_height}px/1 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
{styles}</style>
<rect width="100%" height="100%" rx="8" fill="#16181d"/>
<g transform="translate(20,14)" class="t">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def main() -> None:
    """Read ANSI text from stdin, write the picture."""
    console = Console(record=True, width=102, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("$ make demo\n\n" + sys.stdin.read().rstrip()))
    svg = console.export_svg(title="", theme=MONOKAI, code_format=FRAME, unique_id="nk")
    Path(__file__).with_name("images").joinpath("demo.svg").write_text(svg)


if __name__ == "__main__":
    main()
