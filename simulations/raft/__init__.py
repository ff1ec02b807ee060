"""pysyncobj in a deterministic world, as it comes and inside our shell. See `world.py`; run ``python -m simulations.raft``."""
