"""The error of a training run: one line that says what stopped it and what is kept."""


class TrainingError(ValueError):
    """A run that cannot begin, go on, or be taken up again."""
