"""The checks of `milkweed doctor`: what this machine can do, what the service would use of it, and why."""
