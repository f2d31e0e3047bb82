"""Chain: an amount goes from node to node, nearly whole, each paid by the one who was paid before, and maybe back.

How it is measured, and its false alarms: `rows/chain.py`.
"""

from typing import Any

import numpy as np

from hcm_scale.rows.chain import Chain, chain_through, chains
from hcm_scale.rows.evidence import MadeEvidence, RowEvidence
from hcm_scale.rows.stream import Chains, judge_chains
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import ROW_KIND, Column, Reason, Values
from hcm_scale.score.kinds.passed_on import has_flows
from hcm_scale.score.kinds.row_phrases import evidence_of, length_text, round_text, row_facts

_NAME = "chain"


def _chain_of(made: MadeEvidence) -> Chain:
    return chains(made.rows)


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    return [inputs.rows.once(_chain_of).of_accounts]


def _through(rows: RowEvidence, row: int) -> list[int]:
    """The rows of the best chain through a row, in order."""
    return chain_through(rows.links["before"], rows.links["after"], row)


def _reason(around: Around) -> dict[str, Any]:
    """The rows of the most surprising chain that passes it."""
    rows = evidence_of(around)
    own = np.concatenate(rows.of_account(around.node))
    steps = _through(rows, int(own[rows.nats(_NAME)[own].argmax()])) if len(own) else []
    return {
        "value": around.number,
        "count": len(steps),
        "details": {"rows": [row_facts(around.evidence, s) for s in steps]},
    }


def _rows_of(rows: RowEvidence, account: int) -> Any:
    own = np.concatenate(rows.of_account(account))
    if not len(own):
        return own
    steps = np.array(_through(rows, int(own[rows.nats(_NAME)[own].argmax()])))
    return steps[rows.surprise_by(_NAME, steps) > 0.0]


def _sentence(_: Any, r: Reason) -> str:
    rows = r.details["rows"]
    if len(rows) < 2:
        return "an amount passes it that goes from account to account, nearly whole"
    length = length_text(rows[-1]["time"] - rows[0]["time"], rows[0]["steps"])
    return f"{round_text(rows)}: {len(rows)} payments within {length}"


def _row_sentence(evidence: Any, row: int) -> str:
    return round_text([row_facts(evidence, step) for step in _through(evidence.rows, row)])


def _new_row_sentence(new: Any, told: Chains, row: int) -> str:
    return round_text([new.facts(step) for step in told.to(row)])


CHAIN = ROW_KIND(
    name=_NAME,
    columns={"chain": Column("surprise of the chain that passes it (nats)", title="Chain")},
    title="chain of payments",
    short="Chain",
    help="An amount goes from account to account within hours or days, nearly whole, and passes it. It counts beyond "
    "the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=has_flows,
    reason=_reason,
    sentence=_sentence,
    of_rows=lambda made: made.once(_chain_of).of_rows,
    row_links={"before": lambda made: made.once(_chain_of).before, "after": lambda made: made.once(_chain_of).after},
    row_title="part of a chain",
    row_sentence=_row_sentence,
    judge=judge_chains,
    new_row_sentence=_new_row_sentence,
    rows_of=_rows_of,
)
