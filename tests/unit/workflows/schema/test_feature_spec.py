from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import (
    CATEGORICAL,
    CONTINUOUS,
    HISTORY,
    LABEL,
    SOURCE_TYPES,
    TARGET,
    USERS,
    Feature,
    FeatureSpec,
    Source,
    SpecMetadata,
)
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head

NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8)
SIZES = st.integers(1, 10**9)


@st.composite
def features(draw: st.DrawFn, name: str) -> Feature:
    lists = draw(st.booleans())
    is_id = draw(st.booleans())
    return Feature(
        name=name,
        dtype=draw(st.sampled_from(["int32", "int64", "float32"])),
        cardinality=draw(SIZES) if is_id else None,
        embedding_dim=draw(SIZES) if is_id else None,
        is_list=lists,
        max_length=draw(SIZES) if lists else None,
        null_fill=draw(st.none() | st.integers(-5, 5) | st.floats(-1, 1)),
    )


@st.composite
def specs(draw: st.DrawFn) -> FeatureSpec:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    columns = [draw(features(name)) for name in names]
    label = Feature(name="".join(names) + "label", dtype="float32")
    return FeatureSpec(
        features=(*columns, label),
        channels={
            CATEGORICAL: tuple(f.name for f in columns if f.cardinality),
            CONTINUOUS: tuple(f.name for f in columns if not f.cardinality),
            LABEL: (label.name,),
        },
        sources={"train": Source(files=("train/a",), num_rows=draw(SIZES), type=draw(st.sampled_from(SOURCE_TYPES)))},
        metadata=SpecMetadata(dataset=draw(NAMES), others={"note": draw(NAMES)}),
    )


def test_heads_go_through_yaml_and_older_specs_mean_binary_ones() -> None:
    heads = (Head("y", REGRESSION, weight=0.5, mean=3.25, deviation=1.5), Head("z", MULTICLASS, classes=("yes", "1")))
    columns = {"features": (LABELS, Feature(name="z", dtype="float32")), "channels": {LABEL: ("y", "z")}}
    spec = FeatureSpec(**columns, metadata=SpecMetadata(heads=heads))  # type: ignore[arg-type]
    assert FeatureSpec.from_yaml(spec.to_yaml()).heads == heads
    older = FeatureSpec(**columns)  # type: ignore[arg-type]
    assert "heads" not in older.to_yaml()
    assert FeatureSpec.from_yaml(older.to_yaml()).heads == (Head("y"), Head("z"))


@given(specs())
def test_yaml_round_trip_changes_nothing(spec: FeatureSpec) -> None:
    assert FeatureSpec.from_yaml(spec.to_yaml()) == spec


LABELS = Feature(name="y", dtype="float32")
IDS = Feature(name="i", dtype="int64", cardinality=3, embedding_dim=2)


def test_models_take_wide_ids_and_short_numbers_whatever_the_files_hold() -> None:
    spec = FeatureSpec(
        features=(
            Feature(name="id", dtype="int32", cardinality=5, embedding_dim=2),
            Feature(name="number", dtype="float64"),
            LABELS,
        ),
        channels={CATEGORICAL: ("id",), CONTINUOUS: ("number",), LABEL: ("y",)},
    )
    assert spec.model_dtypes == {"id": "int64", "number": "float32"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Feature(name="a", dtype="int65"), "'int65' is not a NumPy dtype"),
        (lambda: Feature(name="a", dtype="int64", cardinality=0, embedding_dim=1), "cardinality is 0"),
        (lambda: Feature(name="a", dtype="int64", is_list=True), "max_length"),
        (lambda: Source(files=("a.csv",), num_rows=1, type="csv"), "type 'csv'. Available: parquet, tfrecord"),
        (lambda: FeatureSpec(features=(LABELS, LABELS), channels={LABEL: ("y",)}), r"\['y'\] more than once"),
        (lambda: FeatureSpec(features=(LABELS,), channels={LABEL: ("z",)}), r"holds \['z'\].*Available: \['y'\]"),
        (lambda: FeatureSpec(features=(LABELS,), channels={}), "'label' is empty"),
        (
            lambda: FeatureSpec(
                features=(LABELS,), channels={LABEL: ("y",)}, metadata=SpecMetadata(heads=(Head("z"),))
            ),
            r"metadata\.heads are of \['z'\], but channel 'label' holds \['y'\]",
        ),
        (
            lambda: FeatureSpec(features=(LABELS,), channels={LABEL: ("y",), CONTINUOUS: ("y",)}),
            r"\['y'\] are in channels of continuous and of label, expected one role",
        ),
        (
            lambda: FeatureSpec(features=(LABELS, IDS), channels={LABEL: ("y",), USERS: ("i",), CONTINUOUS: ("i",)}),
            r"\['i'\] are in channels of ids and of continuous, expected one role",
        ),
        (
            lambda: FeatureSpec(features=(LABELS, IDS), channels={LABEL: ("i",), CATEGORICAL: ("i",)}),
            r"\['i'\] are in channels of ids and of label, expected one role",
        ),
        (
            lambda: FeatureSpec(features=(LABELS,), channels={LABEL: ("y",), CATEGORICAL: ("y",)}),
            "'y' has no cardinality",
        ),
    ],
)
def test_contradiction_is_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()  # type: ignore[operator]


def test_missing_file_and_split_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"feature_spec\.yaml does not exist"):
        FeatureSpec.read(tmp_path)
    spec = FeatureSpec(features=(LABELS,), channels={LABEL: ("y",)})
    with pytest.raises(SpecError, match=r"no split 'test'. Available: \[\]"):
        spec.source("test")
    with pytest.raises(SpecError, match=r"no feature 'x'. Available: \['y'\]"):
        spec["x"]


DOCUMENT = """\
feature_spec:
  user_id: {dtype: int64, cardinality: 5, embedding_dim: 2}
  item_id_trgt: {dtype: int64, cardinality: 9, embedding_dim: 2}
  item_id_pos: {dtype: int64, cardinality: 9, embedding_dim: 2, dimensions: [100]}
  label: {dtype: float32}
source_spec:
  train:
  - {type: parquet, features: [user_id, item_id_trgt, item_id_pos, label], files: [train/a.parquet], num_rows: 3}
channel_spec:
  label: [label]
  user_features: [user_id]
  target_item_features: [item_id_trgt]
  positive_history: [item_id_pos]
"""


def test_file_has_the_layout_of_nvidias_examples() -> None:
    spec = FeatureSpec.from_yaml(DOCUMENT)
    assert spec["item_id_pos"].max_length == 100
    assert spec.source("train") == Source(files=("train/a.parquet",), num_rows=3)
    assert yaml.safe_load(spec.to_yaml()) == {**yaml.safe_load(DOCUMENT), "metadata": {}}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", label], files", "], files: [c]}\n  - {type: csv, features: [label], files", "train has 2 chunks"),
        ("type: parquet", "type: csv", r"train\[0\]\.type is 'csv'"),
        (", num_rows: 3", "", r"train\[0\] lacks 'num_rows'"),
    ],
)
def test_spec_that_no_loader_reads_is_sent_to_import(old: str, new: str, message: str) -> None:
    assert old in DOCUMENT
    with pytest.raises(
        SpecError, match=rf"source_spec\.{message}, and loaders read .*rankline import RECIPE DIRECTORY"
    ):
        FeatureSpec.from_yaml(DOCUMENT.replace(old, new))


def test_histories_in_another_order_than_the_items_are_refused() -> None:
    def ids(name: str, length: int | None = None) -> Feature:
        return Feature(
            name=name, dtype="int64", cardinality=9, embedding_dim=2, is_list=length is not None, max_length=length
        )

    members = (ids("item_trgt"), ids("cat_trgt"), ids("cat_pos", 5), ids("item_pos", 5), LABELS)
    channels = {LABEL: ("y",), TARGET: ("item_trgt", "cat_trgt")}
    assert FeatureSpec(features=members, channels={**channels, HISTORY: ("item_pos", "cat_pos")}).is_sequential
    with pytest.raises(SpecError, match=r"another order: \['item', 'cat'\] and \['cat', 'item'\]"):
        FeatureSpec(features=members, channels={**channels, HISTORY: ("cat_pos", "item_pos")})
    with pytest.raises(SpecError, match=r"of \[9, 9\] and \[9\] ids, expected the same features"):
        FeatureSpec(features=members, channels={**channels, HISTORY: ("item_pos",)})
