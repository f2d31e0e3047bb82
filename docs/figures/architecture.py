"""Draws docs/figures/architecture.svg from the import statements of the package: `python docs/figures/architecture.py`.

A box is a folder or a top-level module, with the first sentence of its docstring. A box stands above everything that
it imports; an arrow is left out where a chain of others says the same. `__init__` and `__main__` are not drawn.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hcm_scale"
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT, LETTERS = 1180, 158, 72, 112, 27
STYLE = """
  text { font-family: system-ui, sans-serif; fill: #1d2733 } .name { font-size: 15px; font-weight: 600 }
  .about { font-size: 10.5px; fill: #51606f } rect { fill: #f3f6fa; stroke: #9fb1c4; rx: 6px }
  path { fill: none; stroke: #8a9aab; stroke-width: 1.2; marker-end: url(#tip) }
"""


def rooms() -> dict[str, list[Path]]:
    """Source files by folder or top-level module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if not first.startswith("__"):
            found.setdefault(first, []).append(path)
    return found


def imports(paths: list[Path], known: set[str]) -> set[str]:
    """Which of the known folders and modules these files import."""
    names = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hcm_scale":
                names |= {f"{node.module}.{alias.name}".split(".")[1] for alias in node.names}
    return names & known


def closure(name: str, arrows: dict[str, set[str]]) -> set[str]:
    """Everything that can be reached from a name."""
    return set().union(*({other} | closure(other, arrows) for other in arrows[name])) if arrows[name] else set()


def about(name: str, paths: list[Path]) -> list[str]:
    """The first sentence of the docstring, in at most three lines."""
    source = next((path for path in paths if path.name == "__init__.py"), paths[0])
    text = (ast.get_docstring(ast.parse(source.read_text())) or "").split("\n\n")[0].split(". ")[0]
    words = text.rstrip(".").replace("`", "").split()
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    assert len(lines) <= 3, f"the first sentence about {name} is too long for its box"
    return lines


def draw() -> str:
    """The picture as SVG."""
    found = rooms()
    arrows = {name: imports(paths, set(found)) - {name} for name, paths in found.items()}
    height: dict[str, int] = {}
    for _ in arrows:
        for name in sorted(arrows.keys() - height.keys()):
            if arrows[name] <= height.keys():
                height[name] = max((height[other] + 1 for other in arrows[name]), default=0)
    assert height.keys() == arrows.keys(), (
        f"these import each other in a circle: {sorted(arrows.keys() - height.keys())}"
    )
    rows = [sorted(name for name in height if height[name] == row) for row in range(max(height.values()) + 1)]
    place = {}
    for row, names in enumerate(rows):
        for column, name in enumerate(names):
            center = WIDTH * (column + 0.5) / len(names)
            place[name] = center, (len(rows) - 1 - row) * ROW_HEIGHT + 10
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW_HEIGHT}">']
    lines.append(f"<style>{STYLE}</style>")
    lines.append('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"')
    lines.append('  orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#8a9aab;stroke:none"/></marker></defs>')
    for name, others in sorted(arrows.items()):
        for other in sorted(others - set().union(*(closure(each, arrows) for each in others))):
            (x, y), (to_x, to_y) = place[name], place[other]
            bend = (y + BOX_HEIGHT + to_y) / 2
            lines.append(
                f'<path d="M{x:.0f} {y + BOX_HEIGHT}C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {to_y}"/>'
            )
    for name, (x, y) in sorted(place.items()):
        lines.append(f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>')
        lines.append(f'<text class="name" x="{x:.0f}" y="{y + 19}" text-anchor="middle">{name}</text>')
        for number, line in enumerate(about(name, found[name])):
            at = f'x="{x:.0f}" y="{y + 35 + 13 * number}"'
            lines.append(f'<text class="about" {at} text-anchor="middle">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (ROOT / "docs" / "figures" / "architecture.svg").write_text(draw())
