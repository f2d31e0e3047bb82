"""The explained nodes of the report page: for each a picture, its farthest neighbours and its oddest attributes."""

import html
import re
from collections.abc import Mapping
from typing import Any

from hcm_scale.report import neighborhood
from hcm_scale.report.figures import fixed, id_text, share_bar, signed_bar
from hcm_scale.report.wording import score_title

_MARK = (
    '<svg class="peers" viewBox="0 0 16 16" aria-hidden="true"><g class="{}"><circle cx="8" cy="8" r="4"/></g></svg>'
)
_NOTE = (
    "In each picture the node sits in the middle and every neighbour as far out as the model predicts it to be; a true "
    "neighbour belongs on the first ring, shaded. Strokes along the spokes reach one standard deviation either way. "
    f"{_MARK.format('peer')} edge kept, {_MARK.format('peer dropped')} edge dropped by purification. "
    "The average hop may leave out the farthest neighbours (<code>score.trim</code>); the list below shows all."
)


def explained(report: dict[str, Any]) -> str:
    """The first nodes, each with its picture, its farthest neighbours and its oddest attributes."""
    if not report["top"]:
        return ""
    cards = "".join(_node(node) for node in report["top"])
    return f'<h2>The first {len(report["top"])}, explained</h2><p>{_NOTE}</p><div class="nodes">{cards}</div>'


def _node(node: Mapping[str, Any]) -> str:
    picture = ""
    if node["degree"]:
        hidden = node["picture"]["hidden"]
        more = f'<p class="more">and {hidden:,} nearer neighbours</p>' if hidden else ""
        picture = f"<div>{neighborhood.draw(node['picture'], node['id'])}{more}</div>"
    reason = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(node["reason"]))
    return (
        f'<article class="node" id="node-{node["rank"]}">{_heading(node)}<p class="reason">{reason}</p>'
        f'<div class="parts">{picture}{_neighbors(node)}{_differences(node)}</div></article>'
    )


def _heading(node: Mapping[str, Any]) -> str:
    label = node.get("label")
    badge = f'<span class="badge{"" if label == "normal" else " anomaly"}">{html.escape(label)}</span>' if label else ""
    facts = " · ".join(f"{score_title(name)} <b>{fixed(value)}</b>" for name, value in node["scores"].items())
    return (
        f'<header><span class="rank">{node["rank"]}</span>{id_text(node["id"], "h3")}{badge}'
        f'<span class="facts">{facts} · degree <b>{node["degree"]:,}</b></span></header>'
    )


def _neighbors(node: Mapping[str, Any]) -> str:
    """The farthest neighbours, a bar as long as the predicted hop with a whisker of one standard deviation."""
    if not node["neighbors"]:
        return ""
    num_rings = len(node["picture"]["rings"])
    rows = "".join(_neighbor(neighbor, num_rings) for neighbor in node["neighbors"])
    hidden = node["degree"] - len(node["neighbors"])
    more = f'<p class="more">and {hidden:,} more</p>' if hidden else ""
    return f"<div><h4>Farthest neighbours, predicted hop</h4><table><tbody>{rows}</tbody></table>{more}</div>"


def _neighbor(neighbor: Mapping[str, Any], num_rings: int) -> str:
    hop, std = neighbor["hop"], neighbor["std"] or 0.0
    if hop is None:
        cells = '<td></td><td class="num wide">not scored</td>'
    else:
        bar = share_bar(hop / num_rings, ((hop - std) / num_rings, (hop + std) / num_rings))
        cells = f'<td>{bar}</td><td class="num wide">{hop:.2f} <small>± {std:.2f}</small></td>'
    state = ' class="dropped" title="purification dropped this edge"' if neighbor["dropped"] else ""
    return f'<tr{state}><td class="text">{id_text(neighbor["id"])}</td>{cells}</tr>'


def _differences(node: Mapping[str, Any]) -> str:
    """The attributes that differ most, a bar to the right where the node lies above its neighbours."""
    if not node["differences"]:
        return ""
    longest = max(abs(d["deviations"]) for d in node["differences"])
    rows = "".join(
        f'<tr title="{d["value"]:.4g} against {d["neighbors"]:.4g}"><td class="text">{id_text(d["column"])}</td>'
        f'<td>{signed_bar(d["deviations"] / longest)}</td><td class="num">{_signed(d["deviations"])}</td></tr>'
        for d in node["differences"]
    )
    return (
        f"<div><h4>Attributes against its neighbours\u2019, deviations</h4><table><tbody>{rows}</tbody></table></div>"
    )


def _signed(value: float) -> str:
    """With a sign, and a minus as wide as the plus."""
    return f"{value:+.1f}".replace("-", "−")
