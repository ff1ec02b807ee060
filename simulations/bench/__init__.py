"""Measurements: ratios to a baseline of the same run, with every sample kept."""
