from pathlib import Path

from rankline.recipes.changed_file import changed_recipe
from rankline.recipes.recipe_file import read_recipe
from tests.unit.rankline.test_recipe_file import WHOLE, written


def test_choices_are_replaced_and_everything_else_stays(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = read_recipe(path)
    path.write_text(changed_recipe(path, "dlrm", {"top_mlp": (32, 16)}, {"learning_rate": 0.02, "batch_size": 256}))
    after = read_recipe(path)
    assert after.train == before.train.with_choices(top_mlp=(32, 16), learning_rate=0.02, batch_size=256)
    assert (after.encoding, after.prepare, after.serving) == (before.encoding, before.prepare, before.serving)
    assert (after.dataset.inputs, after.dataset.heads) == (before.dataset.inputs, before.dataset.heads)
    assert '"no"' in path.read_text()  # a name, as it was written


def test_sections_that_a_file_lacks_are_made(tmp_path: Path) -> None:
    lines = [line for line in WHOLE.splitlines() if not line.startswith(("model", "training"))]
    for model in ([], ["model: deepfm"]):
        path = written(tmp_path, "\n".join([*lines, *model]))
        before = read_recipe(path)
        path.write_text(changed_recipe(path, before.train.model.name, {"dropout": 0.25}, {"learning_rate": 0.02}))
        assert read_recipe(path).train == before.train.with_choices(dropout=0.25, learning_rate=0.02)
        assert read_recipe(path).train.model.name == before.train.model.name
