"""Other common ways to prepare data, and to train and serve the same models.

native        the two input pipelines of NVIDIA's Criteo notebook, measured by `bench.training.criteo`
collaborative ALS and item-kNN, measured by `bench.training.quality`
tabular       models of other libraries, measured by `bench.training.tables`
notebook      workflows and models as a notebook saves them, measured by `bench.serving.foreign`
prepare       Criteo's preprocessing in Polars and in DuckDB, measured by `bench.data.prepare`
servers       one scorer behind other servers, measured by `bench.serving.alternatives`
processes     runs them in environments of their own
"""
