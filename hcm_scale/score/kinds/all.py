"""The kinds of evidence of the package, by name: to add one, write its file and put it here."""

from hcm_scale.score.kinds.attributes import ATTRIBUTES
from hcm_scale.score.kinds.burst import BURST
from hcm_scale.score.kinds.chain import CHAIN
from hcm_scale.score.kinds.closure import CLOSURE
from hcm_scale.score.kinds.cohesion import COHESION
from hcm_scale.score.kinds.context import CONTEXT
from hcm_scale.score.kinds.context_closure import CONTEXT_CLOSURE
from hcm_scale.score.kinds.history import HISTORY
from hcm_scale.score.kinds.hop import HOP
from hcm_scale.score.kinds.passed_on import PASSED_ON

_OF_GRAPHS = HOP, CLOSURE, CONTEXT, CONTEXT_CLOSURE, ATTRIBUTES, COHESION
ROW_KINDS = HISTORY, BURST, PASSED_ON, CHAIN  # of rows of the edge table, as runs keep them
GRAPH_KINDS = {kind.name: kind for kind in _OF_GRAPHS}
KINDS = GRAPH_KINDS | {kind.name: kind for kind in ROW_KINDS}
ROW_TITLES = {kind.name: kind.row_title for kind in ROW_KINDS} | {"pair": "ends belong together least"}
