"""HTTP in several processes: workers that speak it, one process with the engine, and who starts them all."""
