"""Embedded in each agent process."""
