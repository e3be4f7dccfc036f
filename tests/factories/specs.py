"""Feature specs of rows without lists."""

from collections.abc import Sequence

from rankline.workflows.schema.feature_spec import Feature, FeatureSpec


def scalar_spec(tables: Sequence[tuple[int, int]], num_numbers: int) -> FeatureSpec:
    """Ids C0, C1, … with tables of these cardinalities and widths, numbers I0, I1, …, and a label."""
    ids = [Feature(name=f"C{n}", dtype="int64", cardinality=c, embedding_dim=d) for n, (c, d) in enumerate(tables)]
    numbers = [Feature(name=f"I{n}", dtype="float32") for n in range(num_numbers)]
    return FeatureSpec(
        features=(*ids, *numbers, Feature(name="label", dtype="float32")),
        channels={
            "categorical": tuple(feature.name for feature in ids),
            "continuous": tuple(feature.name for feature in numbers),
            "label": ("label",),
        },
    )
