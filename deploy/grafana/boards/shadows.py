"""Panels of shadows: how far they agree with the models whose images they see."""

from .panels import IMAGES, IMAGES_A_SECOND, Panel, Query, lines
from .series import MODEL, quantile, rate, series, share, total


def shadow_panels() -> list[Panel]:
    """Make the row of shadows."""
    images = "milkweed_shadow_images_total"
    compared = total(series(images, MODEL, 'outcome=~"same|other|failed"'), "model, shadow")
    pair = "{{shadow}} of {{model}}"
    return [
        lines(
            "Agreement",
            "percentunit",
            "Share of the compared images with the model's best class, of the versions that serve now, on all chosen "
            "servers. One that only the shadow failed is a disagreement.",
            Query(share(total(series(images, MODEL, 'outcome="same"'), "model, shadow"), compared), pair),
            top=1,
        ),
        lines("Compared", IMAGES, "Images that the agreement is of.", Query(compared, pair)),
        lines(
            "Shadow images by outcome",
            IMAGES_A_SECOND,
            "same, other: the best class. failed: by the shadow alone. dropped: there was no room beside what clients "
            "wait for.",
            Query(total(rate(images, MODEL), "shadow, outcome") + " > 0", "{{shadow}} {{outcome}}"),
            stacked=True,
        ),
        lines(
            "Divergence",
            "suffix: nats",
            "KL of all classes from the model's to the shadow's, an image.",
            *(
                Query(quantile(which, "milkweed_shadow_kl", MODEL, by="model, shadow"), f"{pair} p{which * 100:.0f}")
                for which in (0.5, 0.95)
            ),
        ),
        lines(
            "Forward less the model's",
            "s",
            "Median of the shadow's forward less the model's, seconds an image of its batch; below 0 it is faster.",
            Query(quantile(0.5, "milkweed_shadow_seconds_difference", MODEL, by="model, shadow"), pair),
            least=None,
        ),
    ]
