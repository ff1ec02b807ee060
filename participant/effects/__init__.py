"""The effect ledger: what was done to the world outside, by position in the program. It does not roll back.

`entries` is what it holds, `ledger` the rules, `backend` what a place to keep it provides, `steps` one step's way through it.
Pure; files and Redis are in `participant.runtime`.
"""
