"""A whole cluster of real processes on this machine: the demo, and scripted runs of other people's topologies."""
