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
    TARGET,
    USERS,
    Feature,
    FeatureSpec,
    Source,
    SpecMetadata,
)
from rankline.workflows.schema.spec_file import FILE_TYPES, Chunk, SpecFile
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head


def test_heads_go_through_yaml_and_older_specs_mean_binary_ones() -> None:
    heads = (Head("y", REGRESSION, weight=0.5, mean=3.25, deviation=1.5), Head("z", MULTICLASS, classes=("yes", "1")))
    columns = {"features": (LABELS, Feature(name="z", dtype="float32")), "channels": {LABEL: ("y", "z")}}
    spec = FeatureSpec(**columns, metadata=SpecMetadata(heads=heads))  # type: ignore[arg-type]
    assert FeatureSpec.from_yaml(spec.to_yaml()).heads == heads
    older = FeatureSpec(**columns)  # type: ignore[arg-type]
    assert "heads" not in older.to_yaml()
    assert FeatureSpec.from_yaml(older.to_yaml()).heads == (Head("y"), Head("z"))


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
        (lambda: Source(files=("a.csv",), num_rows=1, type="csv"), "type 'csv'. Available: parquet, tfrecord"),
        (lambda: FeatureSpec(features=(LABELS, LABELS), channels={LABEL: ("y",)}), r"\['y'\] more than once"),
        (lambda: FeatureSpec(features=(LABELS,), channels={LABEL: ("z",)}), r"lists \['z'\].*Available: \['y'\]"),
        (
            lambda: FeatureSpec(
                features=(LABELS,), channels={LABEL: ("y",)}, metadata=SpecMetadata(heads=(Head("z"),))
            ),
            r"metadata\.heads lists \['z'\], but channel 'label' lists \['y'\]",
        ),
        (
            lambda: FeatureSpec(features=(LABELS,), channels={LABEL: ("y",), CONTINUOUS: ("y",)}),
            r"\['y'\] are in channels for both continuous and label, expected one role",
        ),
        (
            lambda: FeatureSpec(features=(LABELS, IDS), channels={LABEL: ("y",), USERS: ("i",), CONTINUOUS: ("i",)}),
            r"\['i'\] are in channels for both ids and continuous, expected one role",
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
    with pytest.raises(SpecError, match=r"unknown split 'test' in source_spec. Available: \[\]"):
        spec.source("test")
    with pytest.raises(SpecError, match=r"unknown feature 'x'. Available: \['y'\]"):
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
        SpecError, match=rf"source_spec\.{message}, but loaders read .*rankline import RECIPE DIRECTORY"
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
    with pytest.raises(SpecError, match=r"different orders: \['item', 'cat'\] and \['cat', 'item'\]"):
        FeatureSpec(features=members, channels={**channels, HISTORY: ("cat_pos", "item_pos")})
    with pytest.raises(SpecError, match=r"with \[9, 9\] and \[9\] ids, expected the same features"):
        FeatureSpec(features=members, channels={**channels, HISTORY: ("item_pos",)})


NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8)
SIZES = st.integers(1, 10**9)


@st.composite
def features(draw: st.DrawFn, name: str) -> Feature:
    is_list = draw(st.booleans())
    return Feature(
        name=name,
        dtype=draw(st.sampled_from(["bool", "int8", "uint64", "float16", "float32"])),
        cardinality=draw(st.none() | SIZES),
        embedding_dim=draw(st.none() | SIZES),
        is_list=is_list,
        max_length=draw(SIZES) if is_list else None,
        null_fill=draw(st.none() | st.integers(-5, 5) | st.floats(-1, 1)),
    )


@st.composite
def mappings(draw: st.DrawFn, names: list[str]) -> tuple[Chunk, ...]:
    order = draw(st.permutations(names))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1)))) if len(order) > 1 else []
    num_rows = draw(SIZES)
    return tuple(
        Chunk(
            type=draw(st.sampled_from(FILE_TYPES)),
            features=tuple(order[first:last]),
            files=tuple(draw(st.lists(NAMES, min_size=1, max_size=3))),
            num_rows=draw(st.sampled_from([None, num_rows])),
        )
        for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True)
    )


@st.composite
def spec_files(draw: st.DrawFn) -> SpecFile:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    return SpecFile(
        features=tuple(draw(features(name)) for name in names),
        mappings=draw(st.dictionaries(NAMES, mappings(names), max_size=3)),
        channels=draw(st.dictionaries(NAMES, st.lists(st.sampled_from(names), unique=True).map(tuple), max_size=3)),
        metadata=draw(st.dictionaries(NAMES, st.none() | st.integers() | NAMES | st.lists(NAMES), max_size=3)),
    )


@given(spec_files())
def test_yaml_round_trip_changes_nothing(spec: SpecFile) -> None:
    assert SpecFile.from_yaml(spec.to_yaml()) == spec


GENERAL = """
feature_spec:
  user_gender:
    dtype: torch.int8
    cardinality: 3 #M,F,Other
  user_age: #treated as numeric value
    dtype: torch.int8
  user_id:
    dtype: torch.int32
    cardinality: 2655
  label:
    dtype: torch.float32
source_spec:
  train:
    - type: csv
      features: [user_gender, user_age]
      files: [train_data_0_0.csv, train_data_0_1.csv]
    - type: csv
      features: [user_id, label]
      files: [train_data_1.csv]
  test:
    - type: csv
      features: [user_id, label, user_gender, user_age]
      files: [test_data.csv]
channel_spec:
  numeric_inputs: [user_age]
  categorical_user_inputs: [user_gender, user_id]
  label_ch: [label]
"""
"""As in NVIDIA's description of feature specs: several chunks, another order of columns, dtypes by PyTorch's names."""

SIM = """
channel_spec:
  label: [label]
  negative_history: [item_id_neg]
  positive_history: [item_id_pos]
  target_item_features: [item_id_trgt]
  user_features: [user_id]
feature_spec:
  item_id_neg: {cardinality: 9, dimensions: [100], dtype: int64}
  item_id_pos: {cardinality: 9, dimensions: [100], dtype: int64}
  item_id_trgt: {cardinality: 9, dtype: int64}
  label: {dtype: bool}
  user_id: {cardinality: 5, dtype: tf.int64}
metadata: {}
source_spec:
  test:
  - features: &id001 [label, user_id, item_id_trgt, item_id_pos, item_id_neg]
    files: [test.tfrecord]
    type: tfrecord
  train:
  - {features: *id001, files: [train.tfrecord], type: tfrecord}
"""
"""As in NVIDIA's SIM for TensorFlow 2: lists have `dimensions`, the two mappings share one list by reference."""


def test_several_chunks_and_other_names_of_dtypes_are_read() -> None:
    spec = SpecFile.from_yaml(GENERAL)
    assert {feature.name: feature.dtype for feature in spec.features} == {
        "user_gender": "int8", "user_age": "int8", "user_id": "int32", "label": "float32",
    }  # fmt: skip
    assert spec["user_gender"].cardinality == 3
    assert spec.mappings["train"] == (
        Chunk(type="csv", features=("user_gender", "user_age"), files=("train_data_0_0.csv", "train_data_0_1.csv")),
        Chunk(type="csv", features=("user_id", "label"), files=("train_data_1.csv",)),
    )
    assert spec.mappings["test"][0].features == ("user_id", "label", "user_gender", "user_age")


def test_dimensions_are_lengths_of_lists() -> None:
    spec = SpecFile.from_yaml(SIM)
    assert spec["item_id_pos"] == Feature(
        name="item_id_pos", dtype="int64", cardinality=9, is_list=True, max_length=100
    )
    assert (spec["label"].dtype, spec["user_id"].dtype) == ("bool", "int64")
    assert spec.mappings["train"][0].features == spec.mappings["test"][0].features
    assert "dimensions:\n    - 100" in spec.to_yaml()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("torch.long", "int64"), ("tf.bool", "bool"), ("np.uint16", "uint16"),
        ("half", "float16"), ],
)  # fmt: skip
def test_dtypes_have_many_names(name: str, dtype: str) -> None:
    text = f"feature_spec: {{a: {{dtype: {name}}}}}\nchannel_spec: {{}}"
    assert SpecFile.from_yaml(text)["a"].dtype == dtype


def replaced(old: str, new: str, text: str = GENERAL) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (replaced("features: [user_id, label]", "features: [user_id, lable]"), r"source_spec\.train\[1\]\.features"),
        (replaced("features: [user_id, label]", "features: [user_id]"), r"source_spec\.train: no chunk contains"),
        (replaced("features: [user_id, label]", "features: [user_id, label, user_age]"),
         r"source_spec\.train\[1\]\.features: 'user_age' is already in chunk \[0\]"),
        (replaced("label_ch: [label]", "label_ch: [label, z]"), r"channel_spec\.label_ch\[1\]: 'z' is not in"),
        (replaced("  test:\n    - type: csv", "  test:\n    - type: orc"), r"source_spec\.test\[0\]\.type is 'orc'"),
        (replaced("      files: [test_data.csv]\n", ""), r"source_spec\.test\[0\]\.files: field required"),
        (replaced("cardinality: 2655", "cardinality: auto"), r"feature_spec\.user_id\.cardinality is 'auto': input"),
        (replaced("dtype: torch.int32", "dtype: torch.bfloat16"), r"user_id\.dtype is 'torch.bfloat16', expected a n"),
        (replaced("cardinality: 2655", "dimensions: [0]"), "'user_id': max_length is 0"),
        (replaced("  user_id:\n", "  7:\n"), "feature_spec has the key 7, which is not a string. Quote it"),
        (replaced("  user_id:\n", "  user_age:\n"), "^line 8: invalid YAML: 'user_age' appears twice"),
        ("feature_spec: {a: {dtype: int64}}", "channel_spec: field required"),
        ("feature_spec: {}\nchannel_spec: {}\nmetadata: {d: 2001-99-99}", "invalid YAML: month must be"),
    ],
)  # fmt: skip
def test_contradiction_in_a_spec_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SpecFile.from_yaml(text)


def test_chunks_that_were_counted_differently_are_refused() -> None:
    a, b = Feature(name="a", dtype="int8"), Feature(name="b", dtype="int8")
    chunks = tuple(
        Chunk(type="csv", features=(name,), files=(name,), num_rows=num_rows) for name, num_rows in (("a", 3), ("b", 4))
    )
    with pytest.raises(SpecError, match=r"source_spec\.train: its chunks have num_rows \[3, 4\]"):
        SpecFile(features=(a, b), mappings={"train": chunks})
    with pytest.raises(SpecError, match=r"source_spec\.train has no chunks"):
        SpecFile(features=(a, b), mappings={"train": ()})
    with pytest.raises(SpecError, match=r"\['a'\] more than once"):
        SpecFile(features=(a, a))


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(SpecError, match=r"mine\.yaml does not exist"):
        SpecFile.read(path)
    path.write_bytes(b"feature_spec: \xff")
    with pytest.raises(SpecError, match=r"mine\.yaml is not UTF-8 text .* at byte 14"):
        SpecFile.read(path)
    path.write_text(replaced("user_gender:", "user_gender: ]"))
    with pytest.raises(SpecError, match=r"mine\.yaml: line 3: invalid YAML"):
        SpecFile.read(path)
