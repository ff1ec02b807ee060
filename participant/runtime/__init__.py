"""The asyncio driver of the participant."""
