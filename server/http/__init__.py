"""What the service does with one HTTP request: middleware, body, payload, and the responses that routes share."""
