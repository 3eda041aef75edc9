"""The scheduler: requests that wait by model, admission by deadline, the cost model and the next batch."""
