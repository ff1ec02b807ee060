"""The second mode: the asyncio drivers of participant and coordinator themselves, in the seeded world.

What is replaced is what lies below them: the event loop, threads, sockets, clocks, the peers' transport, the store's and the
log's insides. Slower than the first mode, in which the simulator drives the machines.
"""
