"""Starts epochs, assembles cuts, writes manifests."""
