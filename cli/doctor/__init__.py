"""What this machine can do, what the service would use of it and why: the checks of `milkweed doctor`."""
