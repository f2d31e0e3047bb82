"""Chain: an amount goes from node to node, nearly whole, each paid by the one who was paid before, and maybe back.

How it is measured, and its false alarms: `rows/chain.py`.
"""

from typing import Any

import numpy as np

from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import OF_ROWS, SURE_WITNESS, Column, Kind, Reason, Values
from hcm_scale.score.kinds.passed_on import has_flows
from hcm_scale.score.kinds.row_phrases import evidence_of, length_text, round_text, row_facts


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    return [inputs.rows.chain.of_accounts]


def _reason(around: Around) -> dict[str, Any]:
    """The rows of the most surprising chain that passes it."""
    rows = evidence_of(around)
    own = np.concatenate(rows.of_account(around.node))
    steps = rows.chain_through(int(own[rows.surprises[own, 3].argmax()])) if len(own) else []
    return {
        "value": around.number,
        "count": len(steps),
        "details": {"rows": [row_facts(around.evidence, s) for s in steps]},
    }


def _sentence(_: Any, r: Reason) -> str:
    rows = r.details["rows"]
    if len(rows) < 2:
        return "an amount passes it that goes from account to account, nearly whole"
    length = length_text(rows[-1]["time"] - rows[0]["time"], rows[0]["steps"])
    return f"{round_text(rows)}: {len(rows)} payments within {length}"


def _row_sentence(evidence: Any, row: int) -> str:
    return round_text([row_facts(evidence, step) for step in evidence.rows.chain_through(row)])


CHAIN = Kind(
    name="chain",
    columns={"chain": Column("surprise of the chain that passes it (nats)", title="Chain")},
    title="chain of payments",
    short="Chain",
    help="An amount goes from account to account within hours or days, nearly whole, and passes it. It counts beyond "
    "the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=has_flows,
    ranks_all_nodes=True,
    zero_says_nothing=True,
    tail=OF_ROWS,
    tail_only=SURE_WITNESS,
    reason=_reason,
    sentence=_sentence,
    row_title="part of a chain",
    row_sentence=_row_sentence,
)
