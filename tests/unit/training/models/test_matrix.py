import numpy as np

from rankline.training.models.matrix import FeatureMatrix
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged


def test_lists_count_their_ids_and_keep_the_most_frequent_distinct() -> None:
    feature = Feature(name="tags", dtype="int64", cardinality=9, embedding_dim=2, is_list=True, max_length=4)
    spec = FeatureSpec(
        features=(feature, Feature(name="y", dtype="float32")), channels={"categorical": ("tags",), "label": ("y",)}
    )
    lists = Ragged(values=np.array([3, 3, 1, 8, 4]), offsets=np.array([0, 3, 3, 5], np.int32))
    assert FeatureMatrix(spec, 4).of({"tags": lists}).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
