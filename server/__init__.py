"""Everything that knows HTTP, time or load, and the `milkweed` command."""
