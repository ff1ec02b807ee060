"""Transports: they carry opaque frames."""
