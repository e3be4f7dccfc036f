"""Default network for tables of any shape, shared by `rankline init` and the benchmarks.

Periodic embeddings of numbers and weight decay bring plain dense layers close to gradient boosting (Gorishniy et al.
2022, arXiv:2203.05556; Holzmüller et al. 2024, arXiv:2407.04491). The fewer the rows, the more dropout they need.
`python -m bench tables` compares the network with LightGBM.
"""

from rankline.training.config.train import TrainConfig
from rankline.training.models.mlp import MLPConfig

_SMALL, _MEDIUM, _LARGE = 10_000, 50_000, 500_000


def table_defaults(num_rows: int) -> TrainConfig:
    """Return model and training settings for a table with `num_rows` rows.

    Smaller tables get smaller batches, more epochs and more regularization.
    """
    model = MLPConfig(
        hidden=(256, 256),
        number_dim=8,
        embedding_dim=8,
        linear_terms=False,
        dropout=0.3 if num_rows <= _SMALL else 0.1,
    )
    sizes = ((_SMALL, 128, 20), (_MEDIUM, 256, 24), (_LARGE, 1024, 8))
    batch_size, epochs = next(((size, epochs) for most, size, epochs in sizes if num_rows <= most), (4096, 3))
    return TrainConfig(
        model=model,
        optimizer="adam",
        learning_rate=2e-3,
        learning_rate_decay="cosine",
        weight_decay=0.1 if num_rows <= _SMALL else 0.05,
        weight_averaging=num_rows <= _SMALL,
        batch_size=batch_size,
        epochs=epochs,
        early_stopping_patience=6,
    )
