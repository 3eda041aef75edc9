"""The Open Inference Protocol, version 2: what KServe's and Triton's clients speak, over REST and gRPC."""
