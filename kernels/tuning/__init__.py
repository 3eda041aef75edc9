"""How a chain is cut and what runs each part: plans, the tuner that measures them, and its cache."""
