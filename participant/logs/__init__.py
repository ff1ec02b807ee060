"""Logs on a participant's own disk: their format and the rules of reading them back. Pure; files are in `participant.runtime.logs`."""
