"""The asyncio driver of the coordinator."""
