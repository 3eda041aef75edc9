"""What routes talk to: submitting images, and models that are loaded and unloaded while others serve."""
