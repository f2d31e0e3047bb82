"""The words of the report in plain English: `TERMS` and, where anomalies are known, `OF_KNOWN` for the glossary of the
page, `HELP` for the headings of its tables.

A term is explained without the others where that is possible; `HELP` is keyed by column of the ranked table and by kind
of evidence.
"""

HELP = {
    "rank": "1 is the node that stands out most.",
    "id": "The node under your own id.",
    "degree": "How many neighbours the node has.",
    "score": "All kinds of evidence added up; the list is sorted by it.",
    "evidence": "The kind of evidence that says most about this node.",
    "p": "The chance that a usual node shows as much evidence: the smaller, the more it stands out.",
    "flagged": "Whether the node stands out beyond what chance explains, at the chosen false-discovery rate.",
    "label": "What is known about the node beforehand. The ranking does not use it.",
    "flags": "What to bear in mind: isolated nodes have no neighbours, sampled ones have more than were looked at.",
    "hop": "Its direct neighbours look several hops away to the model.",
    "closure": "Its neighbours are joined to each other, and all of them look far apart: a group of strangers.",
    "context": "Its attributes are unlike those of its neighbours.",
    "context_closure": "Its neighbours are joined to each other, although their attributes have little in common.",
    "attributes": "Its attributes are not what its surroundings lead one to expect.",
    "ahp": "AHP, average hop prediction: how far away its neighbours look, on average.",
    "iv": "IV, inference variance: how much that answer changes from one sample of the model to the next.",
    "hav": "HAV, hops and variance: AHP and IV added up, each on its own scale.",
    "strange": "AHP and far triangles added up, each on its own scale.",
    "residual": "How far its attributes lie from what its neighbourhood predicts.",
}

TERMS = {
    "Node, edge, neighbour": "A node is one thing of your data, such as an account; an edge joins two of them and "
    "makes them neighbours.",
    "Hop": "One step along an edge. Neighbours are one hop apart, neighbours of neighbours two.",
    "Predicted hop": "How many hops apart two nodes look to the model, judging by their attributes and surroundings. "
    "Two neighbours ought to look about one hop apart; where they look farther, the edge between them is a surprise.",
    "Evidence": "What speaks for a node being odd. There are five kinds, each of which ranks all nodes by itself; the "
    "score adds them up, and a node that leads in one comes before one that is a little odd in all.",
    "Neighbours seem far (hop)": HELP["hop"],
    "Group of strangers (closure)": HELP["closure"] + " Closure counts the triangles of such edges per neighbour.",
    "Unlike its neighbours (context)": HELP["context"],
    "Group of unlike nodes (context_closure)": HELP["context_closure"],
    "Odd attributes (attributes)": HELP["attributes"],
    "p": HELP["p"] + " It is estimated from how the bulk of the nodes is spread.",
    "Flagged, stands out": HELP["flagged"],
    "False-discovery rate": "The share of false alarms to put up with among the flagged nodes: at 10%, about one in "
    "ten of them may be there by chance (score.fdr).",
    "Group": "Nodes that stand out and are joined to each other. Look at a group as one finding.",
    "Difference of attributes": "From 0, alike, to 2, opposite: one minus the cosine of what the attributes became.",
    "Deviations": "How far a value lies from the neighbours' mean, in standard deviations over all nodes.",
    "Weight of an edge": "How much an edge is, such as the amount of all transfers between two accounts, where your "
    "data says so. Heavier neighbours count for more in what the model sees of a node; hops count edges alike.",
    "Dropped edge, purification": "Before learning, edges between the least similar nodes are left out, so that the "
    "model learns what is usual. Dropped edges are still scored.",
    "Parameter sample": "One of several versions of the model. Where they disagree, a prediction is uncertain: the ± "
    "behind it is their standard deviation.",
    "AHP": "Average hop prediction: " + HELP["ahp"].partition(": ")[2],
    "IV": "Inference variance: " + HELP["iv"].partition(": ")[2],
    "HAV": "Hops and variance: " + HELP["hav"].partition(": ")[2],
}
OF_KNOWN = {  # where anomalies are known
    "ROC-AUC": "The chance that a known anomaly stands above a normal node. 0.5 is guessing, 1 is perfect.",
    "Average precision": "How pure the head of the list is. Guessing gives the share of known anomalies among all "
    "nodes, 1 is perfect.",
}
