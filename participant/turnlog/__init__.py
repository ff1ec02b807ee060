"""The write-ahead log of turn commits: what turns did, not what they were given. Replay runs no user code.

`records` is what it holds, `writer` how the turns of one group commit become a batch, `replay` the way back. Pure; the file is
`participant.runtime.durable_log`.
"""
