"""Our compressed models and their rivals, measured in one run: the same weights, photographs and machine."""
