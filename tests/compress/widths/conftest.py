"""The images of the model tests, which narrower layers are fitted to."""

from ...models.conftest import pictures as pictures
