"""Real processes under failures drawn from a seed, for as long as one likes, and the judgement at the end.

``python -m simulations.chaos --seconds 120 --seed 1`` runs the demo's cluster (coordinators, participants, the bank outside) and
every few seconds does to it what machines do: kills, freezes, twins. What is judged needs no help of the product: the bank's own
ledger, the conserved sums of every committed cut, manifests verified offline.
"""

SECONDS = 120.0
"""Of a run unless said otherwise; also of the one in CI."""
