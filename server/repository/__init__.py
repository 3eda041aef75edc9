"""The model repository: bundles on disk, opened models, and the index of what is served."""
