"""The commands of `milkweed bench`: one Typer app, mounted by the command line where the benchmarks are there."""
