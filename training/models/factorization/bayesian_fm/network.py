"""A factorization machine fitted by Gibbs sampling."""

import math
from collections.abc import Sequence

import numpy as np

from rankline.training.models.config import StepConfig
from rankline.training.models.factorization.bayesian_fm import BayesianFMConfig
from rankline.training.models.factorization.bayesian_fm.gibbs import Array, Chain
from rankline.training.models.factorization.bayesian_fm.grouping import Encoded, partners
from rankline.training.models.factorization.bayesian_fm.posterior import Posterior
from rankline.training.models.factorization.tables import TablesModel
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import BINARY

_DRAW_EVERY = 2
"""Number of sweeps between draws to keep, because consecutive draws are correlated."""


class BayesianFM(TablesModel):
    def __init__(self, spec: FeatureSpec, model: BayesianFMConfig) -> None:
        super().__init__(spec, model)
        self._model = model
        self._sampler: _Sampler | None = None

    def begin(self, rows: Array, labels: Array, seed: int) -> None:
        head = self.head
        wanted = labels if head.task == BINARY else (labels - head.mean) / head.deviation
        order = np.lexsort((labels, *rows.T))  # makes draws independent of the order, and memory access sequential
        encoded = [
            (Encoded.of_lists if ids.feature.is_list else Encoded.of)(ids.of_rows(rows[order])) for ids in self.columns
        ]
        self._sampler = _Sampler(encoded, self.sides, wanted[order], self._model, seed, is_binary=head.task == BINARY)

    def learn(self, share: float) -> None:
        assert self._sampler is not None  # set by `begin`
        self._sampler.run(round(share * self._model.sweeps))
        self.tables = self._sampler.tables([len(table) for table in self.tables])


class _Sampler:
    def __init__(
        self,
        columns: Sequence[Encoded],
        sides: tuple[int, int],
        labels: Array,
        model: BayesianFMConfig,
        seed: int,
        *,
        is_binary: bool,
    ) -> None:
        self._columns, self._model, self._is_binary, self._done = columns, model, is_binary, 0
        user, item = (columns[side] for side in sides)
        beside = dict(zip(sides, ([partners(user, item)], [partners(item, user)]), strict=True))
        grouped = [column.known(*beside.get(place, ())) for place, column in enumerate(columns)]
        self._chain = Chain(grouped, labels, factors=model.factors, seed=seed, is_binary=is_binary)
        self._posterior = self._nothing()

    def run(self, sweeps: int) -> None:
        while self._done < sweeps:
            self._chain.sweep()
            self._done += 1
            after = self._done - self._model.burn_in
            if after > 0 and after % _DRAW_EVERY == 0:
                self._keep(self._posterior)

    def tables(self, num_ids: Sequence[int]) -> list[Array]:
        """Return a table per column, float32 (ids, dimensions + 1). An id without rows gets the mean of the others."""
        posterior = self._posterior
        if not posterior.num_draws:  # during burn-in: use the current draw
            posterior = self._nothing()
            self._keep(posterior)
        weights, offset = posterior.mean()
        if self._is_binary:
            # For normally distributed f, the mean of Φ(f) is Φ(mean / √(1 + variance)).
            scale = 1 / math.sqrt(1 + posterior.variance())
            weights[:, :-1] *= math.sqrt(scale)
            weights[:, -1] *= scale
            offset *= scale
        ends = np.cumsum([len(column.ids) for column in self._columns])
        tables = []
        for known, column, size in zip(np.split(weights, ends[:-1]), self._columns, num_ids, strict=True):
            usual = known.mean(axis=0) if len(known) else np.zeros(weights.shape[1])  # lists may all be empty
            table = np.tile(usual, (size, 1))
            table[column.ids] = known
            tables.append(table)
        of_each_row = [column.is_list for column in self._columns].index(False)
        tables[of_each_row][:, -1] += offset
        return [table.astype(np.float32) for table in tables]

    def _nothing(self) -> Posterior:
        return Posterior(np.concatenate([column.frequencies for column in self._columns]), self._model.served_dim)

    def _keep(self, posterior: Posterior) -> None:
        chain = self._chain
        weights = [
            of_features[0] if column.is_list else of_groups
            for column, of_groups, of_features in zip(self._columns, chain.groups, chain.features, strict=True)
        ]
        posterior.add(np.concatenate(weights, axis=1), chain.offset, chain.scores())


def build(
    spec: FeatureSpec,
    model: BayesianFMConfig,
    step: StepConfig,  # noqa: ARG001  (a network's signature)
) -> BayesianFM:
    return BayesianFM(spec, model)
