"""The verb `sim`: NVIDIA's parameters, modes and log on our training."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
import tensorflow as tf
import typer
from typer.testing import CliRunner

from rankline.compat.sim.batches import SplitOpener
from rankline.compat.sim.command import CONTEXT, sim_command
from rankline.compat.sim.options import MODES, SimOptions, cpus_of
from rankline.launch.worker import Cpu
from rankline.training.config.train import TrainConfig
from rankline.training.data.convert import convert
from rankline.training.models.sequential import DINConfig, SIMConfig
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError, SpecError
from rankline.workflows.preprocess.prepared_data import KIND
from rankline.workflows.schema.feature_spec import FILE_NAME, FeatureSpec
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import publish
from tests.factories.training import ratings
from tests.factories.training import sequences as sequence_rows
from tests.factories.training.training_runs import assert_same_weights

NUM_TRAIN, NUM_TEST, BATCH_SIZE = 1000, 200, 64
STEPS = 16  # per epoch
LATENCIES = {"latency_mean", "latency_p90", "latency_p95", "latency_p99"}
QUALITY = {"train_auc", "test_auc", "train_loss", "test_loss"}
SMALL = [
    "--model_type", "mlp", "--stage_two_mlp_dims", "8", "--embedding_dim", "4", "--global_batch_size", str(BATCH_SIZE),
    "--epochs", "2", "--seed", "3", "--optimizer", "lazy_adam",
]  # fmt: skip
# The document's table, but for dataset_dir, which has no default.
TABLE = {
    "model_type": "sim", "embedding_dim": 16, "stage_one_mlp_dims": (200,), "stage_two_mlp_dims": (200, 80),
    "aux_mlp_dims": (100, 50), "feature_spec": "feature_spec.yaml", "optimizer": "adam", "lr": 0.01,
    "weight_decay": 0, "epochs": 3, "global_batch_size": 131072, "dropout_rate": -1, "amp": False, "xla": False,
    "drop_remainder": False, "disable_cache": False, "repeat_count": 0, "prefetch_train_size": 10,
    "prefetch_test_size": 2, "long_seq_length": 90, "prebatch_train_size": 0, "prebatch_test_size": 0,
    "results_dir": Path("/tmp/sim"), "log_filename": "log.json", "save_checkpoint_path": "",
    "load_checkpoint_path": "", "mode": "train", "benchmark": False, "benchmark_warmup_steps": 20,
    "benchmark_steps": 200, "affinity": "socket_unique_interleaved", "inter_op_parallelism": 0,
    "intra_op_parallelism": 0, "num_parallel_calls": None, "seed": -1,
}  # fmt: skip


def app() -> typer.Typer:
    app = typer.Typer()
    app.command(name="sim", context_settings=CONTEXT)(sim_command)
    return app


def sim(*arguments: object) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app(), [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def log_of(results: Path) -> list[tuple[list[int], dict[str, float]]]:
    lines = (results / "log.json").read_text().splitlines()
    found = [json.loads(line.removeprefix("DLLL ")) for line in lines]
    return [(line["step"], line["data"]) for line in found]


def steps_of(results: Path) -> list[list[int]]:
    return [step for step, _ in log_of(results)]


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mlflow.MlflowClient]:
    """One store for the whole file: making one takes seconds."""
    directory = tmp_path_factory.mktemp("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    client.create_experiment("sim", artifact_location=(directory / "artifacts").as_uri())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
        yield client


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data") / "prepared"
    return ratings.make_prepared(directory, num_train=NUM_TRAIN, num_valid=NUM_TEST)


@pytest.fixture(scope="module")
def straight(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two epochs without a break."""
    results = tmp_path_factory.mktemp("straight")
    sim(*SMALL, "--dataset_dir", prepared, "--results_dir", results)
    return results


@pytest.fixture(scope="module")
def half(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one epoch of them, with a checkpoint in `saved`."""
    results = tmp_path_factory.mktemp("half")
    sim(
        *SMALL, "--epochs", 1, "--dataset_dir", prepared, "--results_dir", results, "--save_checkpoint_path",
        results / "saved",
    )  # fmt: skip
    return results


# --- Parameters


def test_sim_options_match_the_seed_document() -> None:
    own = {"dataset_dir", "variant", "deterministic", "random_weights"}
    defaults = {field.name: field.default for field in fields(SimOptions)}
    assert {name: default for name, default in defaults.items() if name not in own} == TABLE
    text = CliRunner().invoke(app(), ["--help"], env={"COLUMNS": "200"}).output
    assert all("--" + name.replace("_", "-") in text for name in (*TABLE, *own))


def test_parameters_become_the_choices_of_our_training() -> None:
    config = SimOptions(lr=0.05, weight_decay=0.1, dropout_rate=0.2, xla=True, seed=7, long_seq_length=8, epochs=5)
    assert config.train_config(sequence_rows.make_spec(), "bfloat16") == TrainConfig(
        model=SIMConfig(
            embedding_dim=16, stage_one_hidden=(200,), hidden=(200, 80), aux_hidden=(100, 50),
            short_history=sequence_rows.MAX_LENGTH - 8, dropout=0.2, linear_terms=False,
        ),
        learning_rate=0.05, weight_decay=0.1, xla=True, precision="bfloat16", seed=7, epochs=5, batch_size=131072,
        optimizer="adam", weight_averaging=False, early_stopping_patience=0,
    )  # fmt: skip
    reference = SimOptions(seed=0, variant="reference", long_seq_length=0)
    assert reference.train_config(sequence_rows.make_spec(), "float32").model == SIMConfig(
        hidden=(200, 80), short_history=sequence_rows.MAX_LENGTH, variant="reference", linear_terms=False
    )
    din = SimOptions(seed=0, model_type="din").train_config(sequence_rows.make_spec(), "float32").model
    assert din == DINConfig(embedding_dim=16, hidden=(200, 80), linear_terms=False)


def test_long_history_that_leaves_no_short_one_is_refused() -> None:
    longest = sequence_rows.MAX_LENGTH
    with pytest.raises(ConfigError, match=f"is {longest}, but histories have at most {longest} items.*Pass 11 or less"):
        SimOptions(long_seq_length=longest, seed=0).train_config(sequence_rows.make_spec(), "float32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "predict"], "--mode is 'predict', expected train or inference"),
        (["--global-batch-size", "0"], "--global_batch_size is 0, expected an integer of at least 1"),
        (["--aux_mlp_dims", "8,0"], r"--aux_mlp_dims is \(8, 0\), expected positive integers"),
        (["--affinity", "best"], "--affinity is 'best'. Available: disabled, socket, "),
        (["--model_type", "torch_mlp"], "'torch_mlp', expected a TensorFlow model"),
        ([], "--dataset_dir is missing"),
        (
            ["--benchmark", "--save_checkpoint_path", "x"],
            "--save_checkpoint_path cannot be combined with --benchmark",
        ),
        (["--intra_op_parallelism", "1"], "the thread counts can no longer be changed.*Start a new process"),
    ],
)
def test_parameters_are_refused_by_the_documents_names(arguments: list[str], message: str) -> None:
    tf.constant(0)  # TensorFlow has begun: its threads are there
    with pytest.raises(ConfigError, match=message):
        sim("--model_type", "mlp", *arguments)


# --- Training


def test_training_writes_the_documents_log_and_the_same_to_mlflow(straight: Path, store: mlflow.MlflowClient) -> None:
    found = log_of(straight)
    expected = [[epoch, step] for epoch in (1, 2) for step in range(1, STEPS + 1)]
    assert [step for step, _ in found if len(step) == 2] == expected
    assert [step for step, _ in found if len(step) < 2] == [[1], [2], []]
    for step, data in found:
        names = {
            2: {"classification_loss", "dien_aux_loss", "total_loss", "samples/s"},
            1: {"throughput", "time", *QUALITY, *LATENCIES},
            0: {"time_to_train", *QUALITY},
        }
        assert data.keys() == names[len(step)]
        assert all(np.isfinite(list(data.values())))
    assert found[0][1]["classification_loss"] == found[0][1]["total_loss"] > 0
    assert {name: found[-1][1][name] for name in QUALITY} == {name: found[-2][1][name] for name in QUALITY}
    model = TrainedModel.load(straight / "model")
    assert found[-1][1]["test_auc"] == model.metrics["valid_auc"]
    run = store.get_run(model.run_id).data
    for name, figure in found[-2][1].items():
        assert run.metrics[f"sim/{name}"] == pytest.approx(figure)
    assert (run.params["sim.stage_two_mlp_dims"], run.params["hidden"], run.params["seed"]) == ("(8,)", "(8,)", "3")


def test_missing_seed_is_drawn_and_printed(prepared: Path, tmp_path: Path, store: mlflow.MlflowClient) -> None:
    arguments = [*SMALL, "--seed", -1, "--epochs", 1, "--dataset_dir", prepared, "--repeat_count", 2]
    said = sim(*arguments, "--drop_remainder", "--deterministic", "--results_dir", tmp_path, "--num_parallel_calls", 1)
    model = TrainedModel.load(tmp_path / "model")
    seed = model.manifest.details["config"]["seed"]
    assert seed >= 0
    assert f"seed {seed}" in " ".join(said.split())
    run = store.get_run(model.run_id).data
    assert (run.params["seed"], run.params["sim.seed"]) == (str(seed), str(seed))
    # Two passes are an epoch, each without the batch that is not full.
    assert steps_of(tmp_path) == [*[[1, step] for step in range(1, 2 * (STEPS - 1) + 1)], [1], []]


# --- Checkpoints


@pytest.mark.slow
def test_resumed_run_counts_epochs_from_the_start_and_ends_with_the_same_weights(
    prepared: Path, straight: Path, half: Path, tmp_path: Path, store: mlflow.MlflowClient
) -> None:
    load, save = half / "saved", tmp_path / "saved"
    save.mkdir()  # an empty directory is no checkpoint
    assert steps_of(half)[-2:] == [[1], []]
    arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", tmp_path / "results"]
    arguments += ["--seed", -1, "--load_checkpoint_path", load, "--save_checkpoint_path", save]
    sim(*arguments)
    assert_same_weights(TrainedModel.load(tmp_path / "results" / "model"), TrainedModel.load(straight / "model"))
    assert steps_of(tmp_path / "results") == [*[[2, step] for step in range(1, STEPS + 1)], [2], []]
    # What has ended may go on: with nothing to learn, or with another epoch.
    sim(*arguments[:-4], "--load_checkpoint_path", save)
    assert_same_weights(TrainedModel.load(tmp_path / "results" / "model"), TrainedModel.load(straight / "model"))
    assert steps_of(tmp_path / "results")[-2:] == [[], []]
    sim(*arguments[:-4], "--load_checkpoint_path", save, "--save_checkpoint_path", save, "--epochs", 3)
    assert steps_of(tmp_path / "results")[-2:] == [[3], []]
    model = TrainedModel.load(tmp_path / "results" / "model")
    assert model.run_id == TrainedModel.load(half / "model").run_id
    run = store.get_run(model.run_id).data
    assert run.tags["mlflow.note.content"].endswith("Continuing to epoch 3.")
    assert [point.step for point in store.get_metric_history(model.run_id, "sim/test_auc")] == [1, 2, 3]
    assert list((tmp_path / "results").glob(".sim-*")) == []


def test_checkpoint_is_neither_overwritten_nor_taken_for_another(prepared: Path, half: Path, tmp_path: Path) -> None:
    common = ["--dataset_dir", prepared, "--results_dir", tmp_path]
    before = (half / "saved" / "manifest.json").read_bytes()
    with pytest.raises(
        ConfigError, match="is the checkpoint of another run.*continue that run with --load_checkpoint_path"
    ):
        sim(*SMALL, *common, "--save_checkpoint_path", half / "saved")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(ArtifactError, match="not an artifact"):
        sim(*SMALL, *common, "--save_checkpoint_path", tmp_path / "mine")
    go_on = [*SMALL, *common, "--load_checkpoint_path", half / "saved"]
    with pytest.raises(
        ConfigError, match=r"got global_batch_size 32, previously 64; stage_two_mlp_dims \[9\], previously \[8\]"
    ):
        sim(*go_on, "--stage_two_mlp_dims", 9, "--global_batch_size", 32)
    with pytest.raises(ConfigError, match=r"got embedding_dim 5, previously 4\. Pass the original parameters"):
        sim(*go_on, "--embedding_dim", 5, "--mode", "inference")
    for path, what in ((tmp_path / "absent", "does not exist"), (half / "model", "is trained-model")):
        with pytest.raises(ArtifactError, match=f"{what}, expected a training-checkpoint"):
            sim(*SMALL, *common, "--load_checkpoint_path", path)
    assert (half / "saved" / "manifest.json").read_bytes() == before


# --- Inference


def test_inference_scores_the_test_rows_by_any_model(
    prepared: Path, straight: Path, half: Path, tmp_path: Path
) -> None:
    places = (straight / "model", straight / "model" / "model.savedmodel", half / "saved")
    for number, path in enumerate(places):
        results = tmp_path / str(number)
        arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", results, "--mode", "inference"]
        said = sim(*arguments, "--load_checkpoint_path", path)
        assert "samples/s, mean" in " ".join(said.split())
        *steps, (last, summary) = log_of(results)
        assert [step for step, _ in steps] == [[1, 1], [1, 2], [1, 3], [1, 4]]  # of 200 rows, not of 1,000
        assert all(data.keys() == {"samples/s"} for _, data in steps)
        assert last == []
        assert summary.keys() == {"throughput", "time", *LATENCIES}
        assert NUM_TEST / summary["time"] == pytest.approx(summary["throughput"])


def test_inference_uses_random_weights_on_request(prepared: Path, tmp_path: Path, store: mlflow.MlflowClient) -> None:
    arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", tmp_path, "--mode", "inference"]
    with pytest.raises(ConfigError, match=r"model does not exist, expected a trained model.*--random_weights"):
        sim(*arguments)
    assert not (tmp_path / "log.json").exists()
    sim(*arguments, "--random_weights", "--amp")
    assert steps_of(tmp_path) == [[1, 1], [1, 2], [1, 3], [1, 4], []]
    found = store.search_runs([store.get_experiment_by_name("sim").experiment_id])[0].data  # the latest
    assert found.params["sim.random_weights"] == "True"
    assert found.metrics["sim/throughput"] == pytest.approx(log_of(tmp_path)[-1][1]["throughput"])


def test_saved_model_is_not_scored_otherwise_than_it_is_served(prepared: Path, straight: Path) -> None:
    arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", straight, "--mode", "inference", "--amp"]
    with pytest.raises(
        ConfigError,
        match=r"model is not a checkpoint, so it supports only float32 without XLA\. "
        r"Remove",
    ):
        sim(*arguments)
    with pytest.raises(ConfigError, match="nix does not exist, expected a trained model"):
        sim(*arguments, "--load_checkpoint_path", "nix")


# --- Benchmarks


def test_benchmark_of_training_takes_its_steps_and_keeps_nothing(prepared: Path, tmp_path: Path) -> None:
    arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", tmp_path, "--benchmark"]
    sim(*arguments, "--benchmark_warmup_steps", 2, "--benchmark_steps", 20)
    *steps, (last, summary) = log_of(tmp_path)
    assert [step for step, _ in steps] == [[1, number] for number in range(1, 23)]
    assert steps[0][1].keys() == {"classification_loss", "dien_aux_loss", "total_loss", "samples/s"}
    assert steps[0][1]["classification_loss"] == pytest.approx(np.log(2), abs=0.05)
    assert (last, summary.keys()) == ([], {"throughput", "time", *LATENCIES})
    assert not (tmp_path / "model").exists()


def test_benchmark_has_batches_of_more_rows_than_there_are(prepared: Path, straight: Path, tmp_path: Path) -> None:
    arguments = [*SMALL, "--dataset_dir", prepared, "--results_dir", tmp_path, "--mode", "inference", "--benchmark"]
    arguments += ["--load_checkpoint_path", straight / "model", "--benchmark_warmup_steps", 1, "--benchmark_steps", 3]
    sim(*arguments, "--global_batch_size", 5 * NUM_TEST)
    summary = log_of(tmp_path)[-1][1]
    assert steps_of(tmp_path) == [[1, 1], [1, 2], [1, 3], [1, 4], []]
    assert summary["throughput"] == pytest.approx(5 * NUM_TEST / (summary["latency_mean"] / 1e3))


# --- Data


@pytest.fixture(scope="module")
def renamed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecord data as others call it: a spec of another name, whose splits are train and test."""
    records = tmp_path_factory.mktemp("records") / "prepared"
    convert(prepared, records, "tfrecord", prebatch=48)
    spec = FeatureSpec.read(records)
    named = replace(spec, sources={"train": spec.source("train"), "test": spec.source("valid")})
    directory = tmp_path_factory.mktemp("renamed") / "prepared"
    with publish(directory, KIND) as staging:
        for split in ("train", "valid"):
            (staging / split).mkdir()
            for path in (records / split).iterdir():
                (staging / split / path.name).write_bytes(path.read_bytes())
        (staging / "theirs.yaml").write_text(named.to_yaml())
        (staging / FILE_NAME).write_text(spec.to_yaml())
    return directory


def test_spec_may_have_another_name_and_call_its_valid_rows_test(renamed: Path, tmp_path: Path) -> None:
    # 48 rows per record divide no batch of 64, and no row is lost.
    arguments = [*SMALL, "--dataset_dir", renamed, "--feature_spec", "theirs.yaml", "--results_dir", tmp_path]
    sim(*arguments, "--prebatch_train_size", 48, "--prebatch_test_size", 48, "--mode", "inference", "--random_weights")
    assert steps_of(tmp_path) == [[1, 1], [1, 2], [1, 3], [1, 4], []]
    with pytest.raises(SpecError, match=r"ours\.yaml does not exist"):
        sim(*arguments, "--feature_spec", "ours.yaml")


SPEC = """
feature_spec:
  user: {dtype: int64, cardinality: 9}
  fee: {dtype: float32, null_fill: 0}
  clicked: {dtype: bool}
source_spec:
  train: [{type: csv, features: [user, clicked], files: [a.csv]}, {type: csv, features: [fee], files: [b.csv]}]
  test: [{type: csv, features: [user, clicked], files: [a.csv]}, {type: csv, features: [fee], files: [b.csv]}]
channel_spec: {ids: [user], numbers: [fee], label_ch: [clicked]}
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The document's CSV example: two chunks, channels of other names."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    (directory / FILE_NAME).write_text(SPEC)
    (directory / "a.csv").write_text("".join(f"{row % 9},{row % 2}\n" for row in range(96)))
    (directory / "b.csv").write_text("".join(f"{row / 8}\n" for row in range(96)))
    return directory


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("test:", "other:", r"source_spec has \['other', 'train'\], expected train and either test or valid"),
        ("label_ch: [clicked]", "x: [clicked]", "channel 'label' is empty, expected at least one label column"),
    ],
)
def test_spec_without_split_or_label_is_refused(theirs: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    (theirs / FILE_NAME).write_text(SPEC.replace(old, new))
    with pytest.raises(SpecError, match=message):
        sim("--dataset_dir", theirs, "--results_dir", tmp_path / "results", "--model_type", "mlp")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("place", "arguments", "kind", "message"),
    [
        (
            "nowhere",
            SMALL,
            ConfigError,
            r"nowhere is not a directory\. Pass a directory that contains prepared data or a "
            r"feature",
        ),
        ("empty", SMALL, ConfigError, r"neither prepared data nor feature_spec\.yaml.*--feature_spec"),
        ("records", [*SMALL, "--prebatch_train_size", 64], ConfigError, "is 64, but the train data has 48 rows per"),
        ("prepared", [*SMALL, "--prebatch_test_size", 48], ConfigError, "is 48, but the valid data is parquet"),
        (
            "prepared",
            [*SMALL, "--drop_remainder", "--global_batch_size", 2000],
            DataError,
            "the train data has 1,000 rows, fewer than one batch of 2,000",
        ),
    ],
)
def test_untrainable_data_are_refused(
    prepared: Path,
    straight: Path,
    renamed: Path,
    tmp_path: Path,
    place: str,
    arguments: list[object],
    kind: type[Exception],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"prepared": prepared, "model": straight / "model", "records": renamed}
    with pytest.raises(kind, match=message):
        sim(*arguments, "--dataset_dir", places.get(place, tmp_path / place), "--results_dir", tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("is_cached", [True, False])
def test_rows_in_the_same_order_are_read_once_unless_the_cache_is_disabled(tmp_path: Path, is_cached: bool) -> None:
    prepared = ratings.make_prepared(tmp_path / "prepared", num_train=100, num_valid=100)
    open_split = SplitOpener(SimOptions(disable_cache=not is_cached, global_batch_size=30))
    batches = open_split(prepared, FeatureSpec.read(prepared), "valid", 99, shuffle=False, seed=0)
    first = [labels.numpy().tolist() for _, labels in batches]
    assert [len(labels) for labels in first] == [30, 30, 30, 10]
    (prepared / "valid" / "part_0.parquet").unlink()
    if is_cached:
        assert [labels.numpy().tolist() for _, labels in batches] == first
    else:
        with pytest.raises(DataError, match="was removed after"):
            list(batches)


def test_records_with_a_spec_are_imported_once(
    renamed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records"
    shutil.copytree(renamed, records)
    (records / "manifest.json").unlink()
    arguments = [
        *SMALL,
        "--dataset_dir",
        records,
        "--feature_spec",
        "theirs.yaml",
        "--results_dir",
        tmp_path / "results",
    ]
    infer = ["--mode", "inference", "--random_weights", "--prebatch_test_size", 48]
    assert "import" in sim(*arguments, *infer)
    assert steps_of(tmp_path / "results") == [[1, 1], [1, 2], [1, 3], [1, 4], []]
    assert "import" not in sim(*arguments, *infer)


# Two sockets of two cores with two threads each.
CPUS = [Cpu(socket=n % 4 // 2, core=n % 2, number=n) for n in range(8)]
EXPECTED = {"socket": {0, 1, 4, 5}, "single": {0, 4}, "single_unique": {0, 4}}


@pytest.mark.parametrize("mode", MODES)
def test_modes_bind_a_process_that_is_alone(mode: str) -> None:
    assert cpus_of(mode, CPUS) == EXPECTED.get(mode, set(range(8)))
