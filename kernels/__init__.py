"""Functions on tensors: the Monarch product, how its factors are packed, and what runs it on a device."""
