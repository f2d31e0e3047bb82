"""The kinds of evidence of the package, by name: to add one, write its file and put it here."""

from hcm_scale.score.kinds.attributes import ATTRIBUTES
from hcm_scale.score.kinds.closure import CLOSURE
from hcm_scale.score.kinds.cohesion import COHESION
from hcm_scale.score.kinds.context import CONTEXT
from hcm_scale.score.kinds.context_closure import CONTEXT_CLOSURE
from hcm_scale.score.kinds.hop import HOP

KINDS = {kind.name: kind for kind in (HOP, CLOSURE, CONTEXT, CONTEXT_CLOSURE, ATTRIBUTES, COHESION)}
