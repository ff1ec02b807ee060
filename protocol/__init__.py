"""What all sides agree on: pure state machines, wire and storage formats."""
