"""The command `cleancut`."""
