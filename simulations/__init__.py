"""The same machines under seeded failures, and real clusters on this machine."""
