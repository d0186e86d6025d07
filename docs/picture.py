"""Draws `docs/images/demo.svg` from what `nearkin demo` really prints, up to where the report lies.

FORCE_COLOR=1 COLUMNS=106 nearkin --quiet demo | python docs/picture.py
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

LAST = "Report:"  # what follows is for who has run it
LEFT_OUT = "was left out"


def essential(text: str) -> str:
    """The story, the answer and the table."""
    lines = []
    for line in text.splitlines():
        if LEFT_OUT not in line:
            lines.append(line)
        if line.startswith(LAST):
            break
    return "\n".join(lines)


def main() -> None:
    """Read ANSI text from stdin, write the picture."""
    console = Console(record=True, width=109, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("$ make demo\n\n" + essential(sys.stdin.read())))
    svg = console.export_svg(title="", theme=MONOKAI, code_format=FRAME, unique_id="nk")
    Path(__file__).with_name("images").joinpath("demo.svg").write_text(svg)


if __name__ == "__main__":
    main()
